"""Other sessions of the same user."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from . import models
from ._errors import RefusedError, RemexError, RequestInterrupted, UsageError, decoding, is_unknown_process
from ._event import Closed, Event, Gap, number, optional_number
from ._queue import AFTER_EVERYTHING
from ._replay import Replay, Unlisted
from ._route import Route
from ._session import Session


@dataclass(frozen=True)
class SessionInfo:
    """What the server knows about a session. Times are in seconds since the Unix epoch."""

    id: str
    name: str | None
    identity: str
    client_name: str
    attached: bool
    detached_at: float | None
    expires_at: float | None
    processes: int

    @classmethod
    def from_wire(cls, entry: models.SessionEntry) -> SessionInfo:
        """Decodes an entry of `session/list`."""
        detached, expires = entry.get("detachedAtMs"), entry.get("expiresAtMs")
        return cls(
            id=entry["sessionId"],
            name=entry.get("name"),
            identity=entry["identity"],
            client_name=entry["clientName"],
            attached=entry["attached"],
            detached_at=None if detached is None else detached / 1000,
            expires_at=None if expires is None else expires / 1000,
            processes=entry["processes"],
        )


class ObservedEvents:
    """The events of all processes of another session, as pairs of the id of a process and an event.

    The events of one process come in order and exactly once, or a `Gap` says what is missing. Observing survives
    disconnects, and raises `RefusedError` (`unknownSession`) when the session has ended.
    """

    def __init__(self, session: Session, session_id: str) -> None:
        self._session = session
        self._session_id = session_id
        self._route = Route("session/observe")
        #: Whether the server has been asked on this connection, and has answered.
        self._is_observing = False
        self._replays: dict[str, Replay] = {}
        #: The starts of these processes, as far as they are known.
        self._incarnations: dict[str, int] = {}
        #: Processes whose last event has come.
        self._closed: set[str] = set()
        self._ready: deque[tuple[str, Event]] = deque()

    @classmethod
    async def open(cls, session: Session, name: str, from_start: bool) -> ObservedEvents:
        """Begins to observe."""
        listing = await session.call("session/list", {})
        with decoding("session/list"):
            sessions = [SessionInfo.from_wire(entry) for entry in listing["sessions"]]
        found = [entry.id for entry in sessions if name in (entry.id, entry.name)]
        if not found:
            raise RefusedError(-32600, "unknownSession", f"unknown session `{name}`")
        if ("session", found[0]) in session.routes:
            raise UsageError(f"this client observes session `{name}` already")
        events = cls(session, found[0])
        if not from_start:
            await events._skip_to_now()
        await events._observe()
        return events

    def __aiter__(self) -> ObservedEvents:
        return self

    async def __anext__(self) -> tuple[str, Event]:
        while not self._ready:
            if not self._is_observing:
                await self._observe()
            try:
                note = await self._route.next()
            except RequestInterrupted:
                self._is_observing = False
                continue
            self._take(note["processId"], note["incarnation"], note["event"])
        return self._ready.popleft()

    async def close(self) -> None:
        """Stops observing."""
        if self._session.routes.pop(("session", self._session_id), None) is not None:
            await self._session.call("session/unobserve", {"sessionId": self._session_id})

    async def _list(self) -> list[tuple[str, int | None]]:
        listing = await self._session.call("process/list", {"sessionId": self._session_id})
        with decoding("process/list"):
            return [(entry["processId"], optional_number(entry, "incarnation")) for entry in listing["processes"]]

    async def _skip_to_now(self) -> None:
        for process_id, incarnation in await self._list():
            ids = {"processId": process_id, "sessionId": self._session_id}
            probe = {**ids, "afterSeq": AFTER_EVERYTHING, "maxBytes": 0}
            try:
                reply = await self._session.call("process/read", probe)
            except RefusedError as error:
                if not is_unknown_process(error):
                    raise
                continue
            replay = self._begin(process_id, incarnation)
            replay.cursor = replay.latest = max(0, number(reply, "nextSeq") - 1)

    async def _observe(self) -> None:
        while not self._is_observing:
            try:
                if self._replays:
                    await self._begin_restarted()
                known = {process_id: replay.cursor + 1 for process_id, replay in self._replays.items()}
                params = {"sessionId": self._session_id, "fromSeq": known, "othersFromSeq": 1}
                self._route = Route("session/observe")
                self._session.routes["session", self._session_id] = self._route
                await self._session.call("session/observe", params)
                self._is_observing = True
            except RequestInterrupted:
                continue
            except RemexError:
                self._session.routes.pop(("session", self._session_id), None)
                raise

    async def _begin_restarted(self) -> None:
        """Begins anew with processes that were restarted while nothing of them arrived here."""
        for process_id, incarnation in await self._list():
            if process_id not in self._replays or incarnation is None:
                continue
            if self._incarnations.setdefault(process_id, incarnation) != incarnation:
                self._begin(process_id, incarnation)

    def _begin(self, process_id: str, incarnation: int | None) -> Replay:
        self._closed.discard(process_id)
        self._incarnations.pop(process_id, None)
        if incarnation is not None:
            self._incarnations[process_id] = incarnation
        replay = self._replays[process_id] = Replay()
        return replay

    def _take(self, process_id: str, incarnation: int | None, event: Event | RemexError) -> None:
        if isinstance(event, RemexError):
            raise event
        replay, known = self._replays.get(process_id), self._incarnations.get(process_id)
        first = event.from_seq if isinstance(event, Gap) else event.seq
        is_another = None not in (incarnation, known) and incarnation != known
        # Nothing follows a close, so what has its id is the process after a restart, unless it is repeated.
        is_next = process_id in self._closed and first == 1 and (incarnation is None or incarnation != known)
        if replay is None or is_another or is_next:
            replay = self._begin(process_id, incarnation)
        elif incarnation is not None:
            self._incarnations[process_id] = incarnation
        if is_another and first > 1:
            # It was restarted just before the server was asked, which then left out its first events.
            self._is_observing = False
            return
        replay.feed(event)
        for step in replay.ready():
            if not isinstance(step, Unlisted):
                self._ready.append((process_id, step))
                if isinstance(step, Closed):
                    self._closed.add(process_id)
