"""The session with a server: requests, notifications, reconnects.

It owns the connection, and makes a new one after a disconnect. Unanswered requests that may be repeated are sent again
in their order, the others fail; the queues of processes read what they missed. Start at `Session`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ._attempts import connect_first, reconnect
from ._call import CONTROL, PARKED, Call, encode
from ._codec import StrPath, params_for, path_or_none, path_to_wire
from ._connector import Connector
from ._deadline import limited
from ._errors import (
    UNKNOWN_METHOD,
    ProtocolError,
    RefusedError,
    RemexError,
    RequestInterrupted,
    SessionLostError,
    UsageError,
    is_kind,
    is_unknown_process,
    refused,
)
from ._event import number_or_none
from ._inbox import Inbox
from ._keep_alive import keep_alive
from ._notes import Notes, refusal
from ._options import ConnectionState, Options, Resume
from ._protocol_errors import ProtocolErrors
from ._queue import AFTER_EVERYTHING, EventQueue, ids_of
from ._route import Route, RouteKey
from ._target import Connection, Target

log = logging.getLogger("remex_client")

#: How long closing a connection may take.
_CLOSE_TIMEOUT = 2.0

#: Fewer than the 1,024 requests beyond which a server stops reading.
_PLAIN_CALLS = 384
_PARKED_CALLS = 384

_TAKEN_OVER = "another client took the session over"


class Session:
    """A session with a server, across any number of connections."""

    def __init__(self, target: Target, options: Options) -> None:
        self.target = target
        self.options = options
        self.welcome: Mapping[str, Any] = {}
        self.state = ConnectionState("reconnecting", time.monotonic())
        self.disconnects = 0
        self.loop = asyncio.get_running_loop()
        self.queues: dict[str, EventQueue] = {}
        #: Processes that were restarted, by id and incarnation, while events of them are still to come.
        self._earlier: dict[tuple[str, int | None], EventQueue] = {}
        self.routes: dict[RouteKey, Route] = {}
        #: Processes without a handle, with the incarnation if it is known: their output must not block them.
        self._unfollowed: dict[str, int | None] = {}
        #: The connection for requests: None until the handshake is done.
        self._connection: Connection | None = None
        self._pending: dict[int, Call] = {}
        self._enabled: frozenset[str] = frozenset()
        #: Whether the connection takes binary messages; while there is none, whether the last one did.
        self._is_binary = False
        self._plain = asyncio.Semaphore(_PLAIN_CALLS)
        self._parked = asyncio.Semaphore(_PARKED_CALLS)
        self._notes = Notes()
        self._inbox = Inbox(self)
        self._connector = Connector(target, options, self._inbox)
        self._protocol_errors = ProtocolErrors()
        self._prefix = secrets.token_hex(8)
        self._next_number = 1
        self._is_ending = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchers: set[asyncio.Event] = set()

    # Beginning and end.

    async def start(self) -> None:
        """Makes the first connection, with retries if the options ask for them."""
        connection, welcome = await connect_first(self._connector)
        self.welcome = welcome
        self._on_connected(connection, welcome)
        self._task = asyncio.create_task(self._run(connection), name="remex session")

    async def close(self) -> None:
        """Closes the connection, and waits until it is closed; the session survives for its time to live."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def end(self) -> None:
        """Ends the session with its processes, and closes the connection."""
        self._is_ending = True
        try:
            await self.call("session/end", {"sessionId": self.welcome.get("sessionId") or ""})
        except SessionLostError as lost:
            # The connection was lost after the server had ended the session, so there is nothing to resume.
            if lost.reason not in ("forgotten", "closed"):
                raise
        except RefusedError as error:
            # The request was repeated after a disconnect, and the first attempt had taken effect.
            if not is_kind(error, "unknownSession", "unknownMethod") and error.code != UNKNOWN_METHOD:
                raise
        finally:
            await self.close()

    async def state_changed(self) -> ConnectionState:
        """Waits for the next change of the connection state."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            await changed.wait()
        finally:
            self._watchers.discard(changed)
        return self.state

    @property
    def has_sessions(self) -> bool:
        """Whether the server has sessions; one of the oldest dialect has none, and knows plain paths only."""
        return bool(self.welcome.get("sessionId"))

    def is_own(self, session: str | None) -> bool:
        """Returns whether an id or a name is that of this session; None stands for it, too."""
        asked = self.options.session
        name = asked.id if isinstance(asked, Resume) else asked
        return session is None or session in (self.welcome.get("sessionId"), name)

    def supports(self, capability: str) -> bool:
        """Returns whether the host has a capability of its `environment/info`."""
        info = self.welcome.get("environmentInfo") or {}
        return bool((info.get("capabilities") or {}).get(capability))

    @property
    def cwd(self) -> str:
        """The working directory of the server, as on the wire."""
        return str((self.welcome.get("environmentInfo") or {}).get("cwd") or "/")

    def path(self, path: StrPath) -> str:
        """Spells a path for the wire; a relative one begins at the working directory of the server, `~` at the home."""
        info = self.welcome.get("environmentInfo") or {}
        return path_to_wire(path, info.get("cwd"), info.get("userHomeDir"))

    @property
    def lost(self) -> SessionLostError | None:
        """Why the session is lost, if it is."""
        return self.state.lost

    # Requests.

    def name(self, kind: str) -> str:
        """Returns an id that is unique in the session."""
        return f"{kind}-{self._prefix}-{self.number()}"

    def number(self) -> int:
        """Returns a number that is unique in the session."""
        number = self._next_number
        self._next_number += 1
        return number

    async def call(
        self,
        method: str,
        params: Mapping[str, object],
        *,
        timeout: bool = True,
        is_control: bool = False,
        is_raw: bool = False,
        may_repeat: bool = True,
    ) -> Any:
        """Makes a request and returns its result; cancelling it cancels the request.

        With `timeout`, the timeout for requests applies; with `is_raw`, the result may be anything, not only an object.
        Without `may_repeat`, it is not sent again after a disconnect.
        """

        async def whole() -> Any:
            call, answer = await self.enqueue(method, params, is_control=is_control)
            call.is_raw = is_raw
            call.repeats = call.repeats and may_repeat
            return await self.wait_for(call, answer)

        limit = self.options.request_timeout if timeout else None
        if limit is None:
            return await whole()
        return await limited(whole(), limit, f"`{method}` timed out after", is_call=True)

    async def enqueue(
        self,
        method: str,
        params: Mapping[str, object],
        *,
        is_control: bool = False,
        on_answer: Callable[[Any, RemexError | None], None] | None = None,
    ) -> tuple[Call, asyncio.Future[Any]]:
        """Queues a request in the order of calls; the future gets its result.

        `on_answer` gets it at once, before any later message is handled, even if nobody awaits the future any more.
        """
        slots = None
        if method not in CONTROL and not is_control:
            slots = self._parked if method in PARKED or params.get("waitMs") else self._plain
            await slots.acquire()
        future: asyncio.Future[Any] = self.loop.create_future()

        def on_done(result: Any, error: RemexError | None) -> None:
            if on_answer is not None:
                on_answer(result, error)
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
                future.exception()  # silences the warning if nobody awaits it

        try:
            return self.post(method, params, on_done, slots), future
        except BaseException:
            if slots is not None:
                slots.release()
            raise

    def post(
        self,
        method: str,
        params: Mapping[str, object],
        on_done: Callable[[Any, RemexError | None], None] = lambda result, error: None,
        slots: asyncio.Semaphore | None = None,
    ) -> Call:
        """Queues a request, and returns at once."""
        if self.lost is not None:
            raise _again(self.lost)
        call = Call(self.number(), method, params_for(self.welcome, params), on_done, slots)
        self._encode(call)
        self._pending[call.id] = call
        self._send(call)
        return call

    def forget(self, call: Call) -> None:
        """Cancels a request whose caller was cancelled."""
        if self._pending.pop(call.id, None) is None:
            return
        if call.slots is not None:
            call.slots.release()
        if call.is_sent:
            self.cancel(call.id)

    def cancel(self, call_id: int) -> None:
        """Asks the server to cancel a request, or to end the stream of an answered one."""
        if "cancel" in self._enabled and self._connection is not None:
            self._connection.link.send(encode({"method": "request/cancel", "params": {"id": call_id}}))

    async def wait_for(self, call: Call, future: asyncio.Future[Any]) -> Any:
        """Waits for the result of a request; cancelling this cancels the request."""
        try:
            return await future
        except asyncio.CancelledError:
            self.forget(call)
            raise

    def _send(self, call: Call) -> None:
        if self._connection is not None:
            call.send(self._connection.link)

    def _encode(self, call: Call) -> None:
        limits = self.welcome.get("limits") or {}
        call.encode(is_binary=self._is_binary, limit=limits.get("messageBytes") or 0)

    # Processes.

    def add_queue(self, queue: EventQueue) -> None:
        """Registers the queue of a process."""
        if self.lost is not None:
            raise _again(self.lost)
        if queue.id in self.queues:
            raise UsageError(f"this client already has a handle on process `{queue.id}`", "use `host.process(id)`")
        self._unfollowed.pop(queue.id, None)
        self.queues[queue.id] = queue

    def release_queue(self, queue: EventQueue) -> None:
        """Removes a handle on a process; without the last one, its output is discarded."""
        queue.handles -= 1
        if queue.handles > 0:
            return
        if self.queues.get(queue.id) is not queue:
            # What is still streamed of it must not hold up the process that has replaced it.
            queue.release()
            return
        del self.queues[queue.id]
        if queue.closed is None and self.lost is None:
            self._discard(queue.id, queue.confirmed_incarnation)

    def replace_queue(
        self, process_id: str, queue: EventQueue | None, incarnation: int | None = None, *, has_rest: bool = False
    ) -> None:
        """Registers the queue of a process that a restart has put in place of another; None discards its output.

        With `has_rest`, the server streams the rest of the old one before anything of the new one.
        """
        old = self.queues.pop(process_id, None)
        self._notes.drop_unnamed(process_id)
        if old is not None and not has_rest:
            old.on_replaced()
        elif old is not None and old.on_succeeded():
            self._earlier[(process_id, old.incarnation)] = old
        if queue is not None:
            self._unfollowed.pop(process_id, None)
            self.queues[process_id] = queue
        else:
            self._discard(process_id, incarnation)

    def queue_for(self, process_id: str, incarnation: int | None) -> EventQueue | None:
        """Returns the queue that takes an event; only those of a process that can be restarted name their start."""
        queue = None if incarnation is None else self._earlier.get((process_id, incarnation))
        if queue is None:
            queue = self.queues.get(process_id)
            if queue is None or (incarnation is not None and not queue.may_have(incarnation)):
                return None
        return None if queue.has_ended else queue

    def abandon_queue(self, queue: EventQueue) -> None:
        """Removes the queue of a process whose id another one has now; new handles are on that one."""
        if self.queues.get(queue.id) is queue:
            del self.queues[queue.id]
            # What has arrived is of the new one, which must not wait for anybody here.
            self._discard(queue.id, None)

    def report_consumed(self, process_id: str, seq: int, incarnation: int | None = None) -> None:
        """Reports up to which event a process is consumed; without an incarnation, whichever runs now."""
        if "consumed" in self._enabled:
            self._notes.add_consumed(process_id, incarnation, seq)
            self._wake()

    def report_discarded(self, process_id: str, seq: int, incarnation: int | None) -> None:
        """The same for an event that nobody here follows."""
        if "consumed" in self._enabled:
            is_known = process_id in self._unfollowed and incarnation in (None, self._unfollowed[process_id])
            self._notes.add_discarded(process_id, incarnation, seq, is_known=is_known)
            self._wake()

    def report_body_consumed(self, request_id: str, seq: int) -> None:
        """Reports up to which part a streamed body is consumed."""
        if "consumed" in self._enabled:
            self._notes.add_body_consumed(request_id, seq)
            self._wake()

    def read_for(self, queue: EventQueue, after: int) -> None:
        """Reads the events that a queue lacks; after a disconnect, the queue asks again."""
        params = {**ids_of(queue), "afterSeq": after, "maxBytes": queue.read_bytes}
        if queue.wait_ms is not None:
            params["waitMs"] = queue.wait_ms
        self._post_once("process/read", params, queue.on_read)

    def _discard(self, process_id: str, incarnation: int | None) -> None:
        """Discards the output of a process without a handle; without an incarnation, of whichever runs."""
        self._unfollowed[process_id] = incarnation
        if incarnation is None:
            self._skip_output(process_id)
        else:
            # A read would miss a process that is just being restarted.
            self.report_consumed(process_id, AFTER_EVERYTHING, incarnation)

    def _skip_output(self, process_id: str) -> None:
        def on_done(reply: Any, error: RemexError | None) -> None:
            if is_unknown_process(error):
                self._unfollowed.pop(process_id, None)
            elif isinstance(reply, dict) and process_id in self._unfollowed:
                incarnation = number_or_none(reply.get("incarnation"))
                self.report_consumed(process_id, AFTER_EVERYTHING, incarnation)
                # Meanwhile it may have become that of the process after a restart.
                if self._unfollowed[process_id] is None:
                    self._unfollowed[process_id] = incarnation
                if reply.get("closed"):
                    self.on_closed(process_id, incarnation)

        self._probe({"processId": process_id}, on_done)

    def _check(self, queue: EventQueue) -> None:
        """Finds out whether another process has the id of a queue, which must not wait for anybody here."""

        def on_done(reply: Any, error: RemexError | None) -> None:
            if error is not None and error.is_restarted:
                queue.on_replaced()
                self.abandon_queue(queue)

        self._probe(ids_of(queue), on_done)

    def _probe(self, ids: Mapping[str, object], on_done: Callable[[Any, RemexError | None], None]) -> None:
        self._post_once("process/read", {**ids, "afterSeq": AFTER_EVERYTHING, "maxBytes": 0}, on_done)

    def _post_once(
        self, method: str, params: Mapping[str, object], on_done: Callable[[Any, RemexError | None], None]
    ) -> None:
        if self.lost is None:
            self.post(method, params, on_done).repeats = False

    def _wake(self) -> None:
        if self._connection is not None:
            self._connection.link.wake()

    # Called by the inbox.

    def take_notes(self) -> Iterator[bytes]:
        """Returns the acknowledgements that are waiting to be sent."""
        return iter(()) if self._connection is None else self._notes.take()

    def on_request(self, call_id: object) -> None:
        """Refuses a request of the server."""
        if self._connection is not None:
            self._notes.add_refusal(call_id)
            self._wake()
        elif self._connector.link is not None:
            self._connector.link.send(refusal(call_id))

    def on_answer(self, call_id: object, message: dict[str, Any], *, is_binary: bool) -> None:
        """Handles the answer to a request; in that of a binary message, bytes are bytes."""
        error, number = None, number_or_none(call_id)
        if message.get("error") is not None:
            about = None if number is None else self._pending.get(number)
            error = refused(message["error"], None if about is None else path_or_none(about.path))
        if call_id == -1 and error is not None and error.message == _TAKEN_OVER:
            self._disconnect(_TAKEN_OVER)
        elif self._connector.on_answer(call_id, message.get("result"), error):
            pass
        elif number is not None and (call := self._pending.pop(number, None)) is not None:
            result = None
            if error is None:
                try:
                    result = call.result(message.get("result"), is_binary=is_binary)
                except ValueError as invalid:
                    error = ProtocolError(f"cannot decode the answer to `{call.method}`: {invalid}")
            if call.method == "session/end" and self._is_ending and error is None:
                self._closing.set()
            self._complete(call, result, error)

    def _complete(self, call: Call, result: Any, error: RemexError | None) -> None:
        if call.slots is not None:
            call.slots.release()
        call.on_done(result, error)

    def on_closed(self, process_id: str, incarnation: int | None) -> None:
        """Forgets a process of which nothing more arrives."""
        self._earlier.pop((process_id, incarnation), None)
        # It may be the one before a restart.
        if incarnation is None or self._unfollowed.get(process_id) == incarnation:
            self._unfollowed.pop(process_id, None)

    def on_mark(self, mark: int) -> None:
        """Acknowledges a mark."""
        self._notes.mark = mark
        self._wake()

    def on_protocol_error(self, what: str) -> None:
        """Ends the connection; too many of them end the session."""
        log.warning("the server broke the protocol: %s", what)
        self._protocol_errors.add()
        self._connector.on_protocol_error(f"the server broke the protocol: {what}")
        self._disconnect(f"the server broke the protocol: {what}")

    def _disconnect(self, reason: str) -> None:
        if self._connector.link is not None:
            self._connector.link.abort(reason)

    # The connection.

    async def _run(self, connection: Connection) -> None:
        lost = SessionLostError("closed", "the connection task ended")
        try:
            backoff = 0.0
            while True:
                connected = time.monotonic()
                reason = await self._run_connection(connection)
                backoff = max(0.0, backoff - (time.monotonic() - connected))
                taken_over = _TAKEN_OVER in (reason, connection.link.close_reason)
                self._on_disconnected(reason)
                if self._closing.is_set():
                    lost = SessionLostError("closed", "this program closed the connection")
                    return
                if taken_over:
                    lost = SessionLostError("takenOver", _TAKEN_OVER)
                    return
                if not self.has_sessions:
                    message = f"{reason}; a server of the oldest dialect has no sessions, so its processes have ended"
                    lost = SessionLostError("notResumable", message)
                    return
                if self._protocol_errors.are_too_many:
                    lost = SessionLostError("protocol", reason)
                    return
                await connection.end()
                session_id = str(self.welcome["sessionId"])
                connection, welcome, backoff = await reconnect(
                    self._connector, session_id, reason, backoff, self._closing
                )
                self._on_connected(connection, welcome)
        except SessionLostError as error:
            lost = error
        finally:
            self._on_lost(lost)
            await connection.end()

    async def _run_connection(self, connection: Connection) -> str:
        """Waits until the connection ends, or closes it when the session is closed."""
        watching = asyncio.create_task(keep_alive(connection.link, self._inbox, self.options))
        closing = asyncio.create_task(self._closing.wait())
        try:
            both: list[asyncio.Future[Any]] = [connection.link.closed, closing]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not connection.link.closed.done():
                connection.link.finish()
                await asyncio.wait([connection.link.closed], timeout=_CLOSE_TIMEOUT)
                connection.link.abort("this program closed the connection")
            return connection.link.closed.result()
        finally:
            for task in (watching, closing):
                task.cancel()

    def _on_connected(self, connection: Connection, welcome: Mapping[str, Any]) -> None:
        """Sends unanswered requests again, in their order, and reads what the queues have missed."""
        self._connection = connection
        self._enabled = frozenset((welcome.get("capabilities") or {}).get("enabled") or ())
        self._is_binary = connection.link.is_binary
        for call in list(self._pending.values()):
            try:
                self._encode(call)
                self._send(call)
            except UsageError as error:
                # It fitted into a binary message, but this connection has none.
                del self._pending[call.id]
                self._complete(call, None, error)
        for queue in list(self.queues.values()):
            queue.on_reconnect()
            if not queue.is_checked:
                self._check(queue)
        for process_id in list(self._unfollowed):
            self._discard(process_id, None)
        self._change_state(ConnectionState("connected", time.monotonic()))

    def _on_disconnected(self, reason: str) -> None:
        """Fails the requests that cannot be repeated."""
        log.debug("connection lost: %s", reason)
        self._connection, self._enabled = None, frozenset()
        self.disconnects += 1
        self._notes.clear()
        self._change_state(ConnectionState("reconnecting", time.monotonic()))
        # Nothing more arrives of them.
        earlier, self._earlier = self._earlier, {}
        for queue in earlier.values():
            queue.on_replaced()
        for queue in list(self.queues.values()):
            queue.on_disconnect()
        failed = [call for call in self._pending.values() if call.is_sent and not call.repeats]
        for call in failed:
            del self._pending[call.id]
        routes, self.routes = self.routes, {}
        for call in failed:
            self._complete(call, None, RequestInterrupted(call.method))
        for route in routes.values():
            route.interrupt()

    def _on_lost(self, lost: SessionLostError) -> None:
        """Fails all requests, routes and queues."""
        self._connection = None
        self._change_state(ConnectionState("lost", time.monotonic(), lost))
        pending, self._pending = self._pending, {}
        for call in pending.values():
            self._complete(call, None, _again(lost))
        routes, self.routes = self.routes, {}
        for route in routes.values():
            route.end(_again(lost))
        queues = [*self._earlier.values(), *self.queues.values()]
        self._earlier, self.queues = {}, {}
        for queue in queues:
            queue.fail(_again(lost))

    def _change_state(self, state: ConnectionState) -> None:
        self.state = state
        for watcher in self._watchers:
            watcher.set()


def _again(lost: SessionLostError) -> SessionLostError:
    """Returns a copy to raise, so that one exception does not collect the tracebacks of several callers."""
    copy = SessionLostError(lost.reason, lost.message.removeprefix("the session is lost: "))
    copy.__cause__ = lost.__cause__
    return copy
