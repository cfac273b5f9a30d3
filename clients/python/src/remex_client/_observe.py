"""Other sessions of the same user."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from . import models
from ._errors import RefusedError, RemexError, RequestInterrupted, UsageError, decoding, is_unknown_process
from ._event import Closed, Event, Gap, number
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
        self._replays: dict[str, Replay] = {}
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
            try:
                note = await self._route.next()
            except RequestInterrupted:
                await self._observe()
                continue
            self._take(note["processId"], note["event"])
        return self._ready.popleft()

    async def close(self) -> None:
        """Stops observing."""
        if self._session.routes.pop(("session", self._session_id), None) is not None:
            await self._session.call("session/unobserve", {"sessionId": self._session_id})

    async def _skip_to_now(self) -> None:
        listing = await self._session.call("process/list", {"sessionId": self._session_id})
        for entry in listing["processes"]:
            ids = {"processId": entry["processId"], "sessionId": self._session_id}
            probe = {**ids, "afterSeq": AFTER_EVERYTHING, "maxBytes": 0}
            try:
                reply = await self._session.call("process/read", probe)
            except RefusedError as error:
                if not is_unknown_process(error):
                    raise
                continue
            replay = self._replays[entry["processId"]] = Replay()
            replay.cursor = replay.latest = max(0, number(reply, "nextSeq") - 1)

    async def _observe(self) -> None:
        known = {process_id: replay.cursor + 1 for process_id, replay in self._replays.items()}
        params = {"sessionId": self._session_id, "fromSeq": known, "othersFromSeq": 1}
        while True:
            self._route = Route("session/observe")
            self._session.routes["session", self._session_id] = self._route
            try:
                await self._session.call("session/observe", params)
                return
            except RequestInterrupted:
                continue
            except RemexError:
                self._session.routes.pop(("session", self._session_id), None)
                raise

    def _take(self, process_id: str, event: Event | RemexError) -> None:
        if isinstance(event, RemexError):
            raise event
        replay = self._replays.get(process_id)
        # Nothing follows a close, so what has its id is the process after a restart, unless it is repeated.
        is_next = process_id in self._closed and (event.from_seq if isinstance(event, Gap) else event.seq) == 1
        if replay is None or is_next:
            self._closed.discard(process_id)
            replay = self._replays[process_id] = Replay()
        replay.feed(event)
        for step in replay.ready():
            if not isinstance(step, Unlisted):
                self._ready.append((process_id, step))
                if isinstance(step, Closed):
                    self._closed.add(process_id)
