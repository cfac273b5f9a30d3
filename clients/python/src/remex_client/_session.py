"""The session with a server: requests, notifications, reconnects.

It owns the connection, and makes a new one after a disconnect. Unanswered requests that may be repeated are sent again
in their order, the others fail; the queues of processes read what they missed. Start at `Session`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from ._call import CONTROL, PARKED, Call, encode
from ._codec import StrPath, decode_base64, path_or_none, path_to_wire, with_plain_paths, with_uris
from ._deadline import limited
from ._errors import (
    UNKNOWN_METHOD,
    LostReason,
    ProtocolError,
    RefusedError,
    RemexError,
    RequestInterrupted,
    SessionLostError,
    TimedOutError,
    UnauthorizedError,
    UnreachableError,
    UsageError,
    decoding,
    is_kind,
    is_unknown_process,
    refused,
)
from ._event import (
    Chunk,
    Closed,
    Event,
    Exited,
    decode_chunk,
    decode_closed,
    decode_exit,
    decode_gap,
    number,
    optional_number,
    optional_text,
    stream_of,
)
from ._link import Link
from ._options import ConnectionState, Options, Resume, SessionMode
from ._queue import EventQueue
from ._route import Route, RouteKey
from ._target import Connection, Program, Target, dial

log = logging.getLogger("remex_client")

#: The first and the longest pause between attempts to reconnect.
_FIRST_BACKOFF = 0.05
_MAX_BACKOFF = 2.0

#: How long one attempt to reconnect may take; a timer cannot be infinite.
_MAX_ATTEMPT = 3600.0

#: A server that sends but never answers counts as unresponsive after this many keep-alive timeouts.
_UNRESPONSIVE = 6

#: How long closing a connection may take.
_CLOSE_TIMEOUT = 2.0

#: So many invalid messages within this time end the session.
_MAX_PROTOCOL_ERRORS = 8
_PROTOCOL_ERRORS_WITHIN = 60.0

#: Fewer than the 1,024 requests beyond which a server stops reading.
_PLAIN_CALLS = 384
_PARKED_CALLS = 384

_HANDSHAKE = 0
_TAKEN_OVER = "another client took the session over"
#: The version that the oldest dialect says instead of a session.
_OLDEST = "exec-server.v0"
_SESSION_ATTACHED = -32010

#: Reads nothing and acknowledges nothing: only the state is of interest.
AFTER_EVERYTHING = (1 << 64) - 2

#: The usual spelling of the most frequent message; any other is decoded as JSON.
_OUTPUT = re.compile(
    rb'\{"method":"process/output","params":\{"processId":"([^"\\]*)","seq":(\d{1,18}),"stream":"(\w+)","chunk":"'
)


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
        self.routes: dict[RouteKey, Route] = {}
        #: Processes without a handle: their output is discarded, and must not block them.
        self._unfollowed: set[str] = set()
        #: What requests are sent on: None until the handshake is done.
        self._connection: Connection | None = None
        #: What messages are received from, also during the handshake.
        self._link: Link | None = None
        self._pending: dict[int, Call] = {}
        self._handshake: asyncio.Future[Mapping[str, Any]] | None = None
        self._enabled: frozenset[str] = frozenset()
        self._plain = asyncio.Semaphore(_PLAIN_CALLS)
        self._parked = asyncio.Semaphore(_PARKED_CALLS)
        self._consumed: dict[str, int] = {}
        self._body_consumed: dict[str, int] = {}
        self._ack: int | None = None
        self._received = self._answers = 0
        self._protocol_errors = 0
        self._first_protocol_error = 0.0
        self._prefix = secrets.token_hex(8)
        self._next_number = 1
        self._is_ending = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchers: set[asyncio.Event] = set()

    # Life.

    async def start(self) -> None:
        """Makes the first connection, with retries if the options ask for them."""
        began, backoff = time.monotonic(), _FIRST_BACKOFF
        while True:
            try:
                connection, welcome = await self._connect_first()
                break
            except RemexError as error:
                left = self.options.connect_retry - (time.monotonic() - began)
                if left <= 0 or not _may_pass(error):
                    raise
                log.debug("connecting failed, trying again: %s", error)
                await asyncio.sleep(min(_jittered(backoff), left))
                backoff = min(2 * backoff, _MAX_BACKOFF)
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
            # The request was repeated after a disconnect, and the first one had taken effect.
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
        """Returns whether an id or a name of a session is that of this one."""
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

        `on_answer` gets it at once, before any message that follows, and also if no one waits for the future any more.
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
                future.exception()  # it may be that no one asks

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
        """Queues a request without waiting for anything."""
        if self.lost is not None:
            raise _again(self.lost)
        if not self.has_sessions:
            params = with_plain_paths(params)
        elif not self.welcome.get("server") and self.welcome.get("environmentInfo"):
            # A server of the base dialect, which says what its host is, but not what it is itself.
            params = with_uris(params)
        call = Call(self.number(), method, params, on_done, slots)
        limit = (self.welcome.get("limits") or {}).get("messageBytes") or 0
        if 0 < limit < len(call.message):
            raise UsageError(
                f"`{method}` needs a message of {len(call.message)} bytes; the server accepts {limit}",
                "send it in parts",
            )
        self._pending[call.id] = call
        self._send(call)
        return call

    def forget(self, call: Call) -> None:
        """Cancels a request whose caller is gone."""
        if self._pending.pop(call.id, None) is None:
            return
        if call.slots is not None:
            call.slots.release()
        if call.is_sent:
            self.cancel(call.id)

    def cancel(self, call_id: int) -> None:
        """Asks the server to cancel a request, or to end the stream of one that it has answered."""
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
            call.is_sent = True
            self._connection.link.send(call.message)

    # Processes.

    def add_queue(self, queue: EventQueue) -> None:
        """Registers the queue of a process."""
        if self.lost is not None:
            raise _again(self.lost)
        if queue.id in self.queues:
            raise UsageError(f"this client already has a handle on process `{queue.id}`", "use `host.process(id)`")
        self._unfollowed.discard(queue.id)
        self.queues[queue.id] = queue

    def release_queue(self, queue: EventQueue) -> None:
        """Removes a handle on a process; without the last one, its output is discarded."""
        queue.handles -= 1
        if queue.handles > 0 or self.queues.get(queue.id) is not queue:
            return
        del self.queues[queue.id]
        if queue.closed is None and self.lost is None:
            self._unfollowed.add(queue.id)
            self._skip_output(queue.id)

    def replace_queue(self, process_id: str, queue: EventQueue | None) -> None:
        """Registers the queue of a process that a restart has put in place of another; None discards its output."""
        old = self.queues.pop(process_id, None)
        if old is not None:
            old.on_replaced()
        if queue is not None:
            self._unfollowed.discard(process_id)
            self.queues[process_id] = queue
        else:
            self._unfollowed.add(process_id)

    def report_consumed(self, process_id: str, seq: int) -> None:
        """Tells the server how far a process is consumed."""
        if "consumed" in self._enabled:
            self._consumed[process_id] = max(seq, self._consumed.get(process_id, 0))
            self._wake()

    def report_body_consumed(self, request_id: str, seq: int) -> None:
        """Tells the server how far a body is consumed."""
        if "consumed" in self._enabled:
            self._body_consumed[request_id] = seq
            self._wake()

    def read_for(self, queue: EventQueue, after: int) -> None:
        """Reads what a queue misses; after a disconnect, the queue asks again."""
        params = {"processId": queue.id, "afterSeq": after, "maxBytes": queue.read_bytes}
        if queue.wait_ms is not None:
            params["waitMs"] = queue.wait_ms
        self._post_once("process/read", params, queue.on_read)

    def _skip_output(self, process_id: str) -> None:
        def on_done(reply: Any, error: RemexError | None) -> None:
            if is_unknown_process(error) or (isinstance(reply, dict) and reply.get("closed")):
                self._unfollowed.discard(process_id)
            elif isinstance(reply, dict) and process_id in self._unfollowed:
                self.report_consumed(process_id, max(0, number(reply, "nextSeq") - 1))

        params = {"processId": process_id, "afterSeq": AFTER_EVERYTHING, "maxBytes": 0}
        self._post_once("process/read", params, on_done)

    def _post_once(
        self, method: str, params: Mapping[str, object], on_done: Callable[[Any, RemexError | None], None]
    ) -> None:
        if self.lost is None:
            self.post(method, params, on_done).repeats = False

    def _wake(self) -> None:
        if self._connection is not None:
            self._connection.link.wake()

    # Messages of the server.

    def take_notes(self) -> Iterator[bytes]:
        """Returns the acknowledgements that are due."""
        if self._connection is None:
            return
        if self._ack is not None:
            yield b'{"method":"flow/ack","params":{"mark":%d}}' % self._ack
            self._ack = None
        for process_id, seq in self._consumed.items():
            yield encode({"method": "flow/consumed", "params": {"processId": process_id, "seq": seq}})
        self._consumed.clear()
        for request_id, seq in self._body_consumed.items():
            yield encode({"method": "flow/bodyConsumed", "params": {"requestId": request_id, "seq": seq}})
        self._body_consumed.clear()

    def on_pong(self) -> None:
        """Counts a sign of life."""
        self._received += 1
        self._answers += 1

    def on_message(self, buffer: bytearray, start: int, end: int) -> None:
        """Handles a message."""
        self._received += 1
        match = _OUTPUT.match(buffer, start, end)
        if match is not None and buffer[end - 3 : end] == b'"}}':
            try:
                data = decode_base64(memoryview(buffer)[match.end() : end - 3])
                process_id, seq, stream = match.group(1).decode(), int(match[2]), match[3].decode()
            except ValueError:
                pass  # a spelling of JSON that is not the usual one, or an invalid message
            else:
                chunk = Chunk(seq, stream_of(stream), data)
                queue = self.queues.get(process_id)
                if queue is not None:
                    queue.on_output(chunk)
                else:
                    self._on_process_event(process_id, chunk)
                return
        try:
            message = json.loads(str(memoryview(buffer)[start:end], "utf-8"))
            if not isinstance(message, dict):
                raise ValueError("a message must be one JSON object")
            self._on_object(message)
        except (ValueError, RecursionError) as error:
            self._on_protocol_error(str(error))

    def _on_object(self, message: dict[str, Any]) -> None:
        method, params, call_id = message.get("method"), message.get("params"), message.get("id")
        if method is None:
            if "result" not in message and "error" not in message:
                raise ValueError("a message has neither a method nor a result")
            self._on_answer(call_id, message)
        elif not isinstance(method, str):
            raise ValueError("a method must be a string")
        elif call_id is not None:
            error = {"code": UNKNOWN_METHOD, "message": "this client accepts no requests"}
            if self._link is not None:
                self._link.send(encode({"error": error, "id": call_id}))
        elif method in _NOTIFICATIONS:
            try:
                if not isinstance(params, dict):
                    raise ValueError("params must be an object")
                _NOTIFICATIONS[method](self, params)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._on_invalid_notification(params, f"cannot decode `{method}`: {error}")
        else:
            log.debug("unknown notification `%s`", method)

    def _on_answer(self, call_id: object, message: dict[str, Any]) -> None:
        self._answers += 1
        error = None
        if message.get("error") is not None:
            about = self._pending.get(call_id) if isinstance(call_id, int) else None
            error = refused(message["error"], None if about is None else path_or_none(about.path))
        if call_id == -1 and error is not None and error.message == _TAKEN_OVER:
            self._disconnect(_TAKEN_OVER)
        elif self._handshake is not None and call_id in (_HANDSHAKE, -1):
            if not self._handshake.done():
                if error is not None:
                    self._handshake.set_exception(error)
                else:
                    try:
                        self._handshake.set_result(_checked_welcome(message.get("result")))
                    except ProtocolError as invalid:
                        self._handshake.set_exception(invalid)
        elif isinstance(call_id, int) and (call := self._pending.pop(call_id, None)) is not None:
            if error is None and not call.is_raw and not isinstance(message.get("result"), dict):
                error = ProtocolError(f"cannot decode the answer to `{call.method}`: it is not an object")
            if call.method == "session/end" and self._is_ending and error is None:
                self._closing.set()
            self._complete(call, message.get("result") if error is None else None, error)

    def _complete(self, call: Call, result: Any, error: RemexError | None) -> None:
        if call.slots is not None:
            call.slots.release()
        call.on_done(result, error)

    def _on_process(self, params: dict[str, Any], event: Event) -> None:
        session_id, process_id = params.get("sessionId"), params["processId"]
        if not isinstance(process_id, str):
            raise ValueError("`processId` must be a string")
        if session_id is not None:
            # Of a session that this client observes, whose processes may have the same ids.
            if (route := self.routes.get(("session", session_id))) is not None:
                route.push({"processId": process_id, "event": event}, len(getattr(event, "data", b"")))
            return
        self._on_process_event(process_id, event)

    def _on_process_event(self, process_id: str, event: Event) -> None:
        queue = self.queues.get(process_id)
        if queue is not None:
            queue.on_event(event)
        else:
            # Without a handle it keeps running, and its output is discarded.
            if isinstance(event, Closed):
                self._unfollowed.discard(process_id)
            self.report_consumed(process_id, event.seq)

    def _on_output(self, params: dict[str, Any]) -> None:
        self._on_process(params, decode_chunk(params))

    def _on_exited(self, params: dict[str, Any]) -> None:
        self._on_process(params, Exited(number(params, "seq"), decode_exit(params)))

    def _on_closed(self, params: dict[str, Any]) -> None:
        self._on_process(params, decode_closed(number(params, "seq"), params))

    def _on_gap(self, params: dict[str, Any]) -> None:
        self._on_process(params, decode_gap(params))

    def _on_mark(self, params: dict[str, Any]) -> None:
        self._ack = number(params, "mark")
        self._wake()

    def _on_changed(self, params: dict[str, Any]) -> None:
        if not isinstance(params["changes"], list):
            raise ValueError("`changes` must be a list")
        if (route := self.routes.get(("watch", number(params, "watchId")))) is not None:
            route.push(params)

    def _on_body(self, params: dict[str, Any]) -> None:
        if (route := self.routes.get(("http", params["requestId"]))) is not None:
            params["data"] = decode_base64(params["deltaBase64"])
            number(params, "seq")
            route.push(params)

    def _on_session_ended(self, params: dict[str, Any]) -> None:
        if (route := self.routes.get(("session", params["sessionId"]))) is not None:
            route.end(RefusedError(-32600, "unknownSession", f"session `{params['sessionId']}` has ended"))

    def _on_invalid_notification(self, params: object, what: str) -> None:
        """Ends what the notification is about, and nothing else; without a subject, anything may have lost data."""
        log.warning("invalid notification: %s", what)
        error = ProtocolError(what)
        ids = params if isinstance(params, dict) else {}
        process_id, session_id = ids.get("processId"), ids.get("sessionId")
        if isinstance(process_id, str):
            if session_id is not None:
                if isinstance(session_id, str) and (route := self.routes.get(("session", session_id))) is not None:
                    route.push({"processId": process_id, "event": error})
            elif (queue := self.queues.get(process_id)) is not None:
                queue.on_protocol_error(error)
            return
        for key in (("http", ids.get("requestId")), ("watch", ids.get("watchId"))):
            if isinstance(key[1], str | int):
                if (route := self.routes.get(key)) is not None:  # type: ignore[arg-type]
                    route.end(error)
                return
        raise ValueError(what)

    def _on_protocol_error(self, what: str) -> None:
        log.warning("the server broke the protocol: %s", what)
        now = time.monotonic()
        if now - self._first_protocol_error > _PROTOCOL_ERRORS_WITHIN:
            self._first_protocol_error, self._protocol_errors = now, 0
        self._protocol_errors += 1
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(ProtocolError(f"the server broke the protocol: {what}"))
        self._disconnect(f"the server broke the protocol: {what}")

    def _disconnect(self, reason: str) -> None:
        if self._link is not None:
            self._link.abort(reason)

    # The connection.

    async def _run(self, connection: Connection) -> None:
        lost = _lost("closed", "the connection task ended")
        try:
            backoff = 0.0
            while True:
                connected = time.monotonic()
                reason = await self._run_connection(connection)
                backoff = max(0.0, backoff - (time.monotonic() - connected))
                taken_over = _TAKEN_OVER in (reason, connection.link.close_reason)
                self._on_disconnected(reason)
                if self._closing.is_set():
                    lost = _lost("closed", "this program closed the connection")
                    return
                if taken_over:
                    lost = _lost("takenOver", _TAKEN_OVER)
                    return
                if not self.has_sessions:
                    message = f"{reason}; a server of the oldest dialect has no sessions, so its processes have ended"
                    lost = _lost("notResumable", message)
                    return
                if self._protocol_errors >= _MAX_PROTOCOL_ERRORS:
                    lost = _lost("protocol", reason)
                    return
                await connection.end()
                connection, backoff = await self._reconnect(reason, backoff)
        except SessionLostError as error:
            lost = error
        finally:
            self._on_lost(lost)
            await connection.end()

    async def _run_connection(self, connection: Connection) -> str:
        """Waits until the connection ends; closes it if the owner asks for that."""
        keep_alive = asyncio.create_task(self._keep_alive(connection))
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
            for task in (keep_alive, closing):
                task.cancel()

    async def _keep_alive(self, connection: Connection) -> None:
        """Ends the connection when the server does not answer.

        Other messages show that the server is alive, not that it receives: they extend the time, but not forever.
        """
        silence = self.options.keep_alive_timeout
        while True:
            await asyncio.sleep(self.options.keep_alive_interval)
            asked, answers = time.monotonic(), self._answers
            if connection.link.is_websocket:
                connection.link.ping()
            else:
                probe = {"id": _HANDSHAKE, "method": "environment/status", "params": {}}
                connection.link.send(encode(probe))
            while True:
                heard = self._received
                await asyncio.sleep(silence)
                if self._answers != answers:
                    break
                waited = time.monotonic() - asked
                if self._received == heard or waited >= silence * _UNRESPONSIVE:
                    connection.link.abort(f"the server did not respond for {waited:.1f} s")
                    return

    async def _reconnect(self, reason: str, backoff: float) -> tuple[Connection, float]:
        began, limit = time.monotonic(), self.options.reconnect_timeout
        last: RemexError = UnreachableError(f"the connection to {self.target} was lost: {reason}")
        while True:
            left = limit - (time.monotonic() - began)
            await self._unless_closing(asyncio.sleep(max(0.0, min(_jittered(backoff), left / 2))))
            backoff = min(max(2 * backoff, _FIRST_BACKOFF), _MAX_BACKOFF)
            left = limit - (time.monotonic() - began)
            try:
                attempt = asyncio.wait_for(
                    self._connect("resume", str(self.welcome["sessionId"])), min(max(left, 0.01), _MAX_ATTEMPT)
                )
                connection, welcome = await self._unless_closing(attempt)
            except SessionLostError:
                raise
            except RemexError as error:
                last = error
                if is_kind(error, "unknownSession"):
                    what = "the server no longer knows it, because it expired, was ended, or the server was restarted"
                    raise _lost("forgotten", f"{what} ({error.message})") from error
                is_attached = isinstance(error, RefusedError) and error.code == _SESSION_ATTACHED
                is_final = isinstance(error, RefusedError | UnauthorizedError | ProtocolError | UsageError)
                if is_final and not is_attached and not is_kind(error, "shuttingDown", "limitExceeded"):
                    raise _lost("rejected", str(error)) from error
                log.debug("reconnecting failed: %s", error)
            except asyncio.TimeoutError:
                # The end of all attempts interrupted this one; what was wrong before says more.
                pass
            else:
                if welcome.get("sessionId") != self.welcome["sessionId"]:
                    await connection.end()
                    what = "the server no longer knows it, because it expired, was ended, or the server was restarted"
                    raise _lost("forgotten", f"{what} (it started another session)")
                self._on_connected(connection, welcome)
                return connection, backoff
            if time.monotonic() - began + _FIRST_BACKOFF >= limit:
                raise _lost("reconnectTimedOut", f"no connection for {limit:g} s; {last}") from last

    async def _unless_closing(self, awaitable: Awaitable[Any]) -> Any:
        work = asyncio.ensure_future(awaitable)
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([work, closing], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise _lost("closed", "this program closed the connection")
            return work.result()
        finally:
            closing.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait([work])

    async def _connect_first(self) -> tuple[Connection, Mapping[str, Any]]:
        session = self.options.session
        if session is None:
            return await self._connect("new", None)
        if isinstance(session, Resume):
            mode: SessionMode = "takeOver" if session.takeover else "resume"
            return await self._resumed(mode, session.id)
        # Between the attempts another client may make the session or end it, so one of them may be needed twice.
        try:
            return await self._resumed("resume", session)
        except RefusedError as error:
            if not is_kind(error, "unknownSession"):
                raise
        try:
            return await self._connect("new", session)
        except RefusedError as error:
            if not is_kind(error, "sessionNameTaken"):
                raise
        return await self._resumed("resume", session)

    async def _resumed(self, mode: SessionMode, session: str) -> tuple[Connection, Mapping[str, Any]]:
        connection, welcome = await self._connect(mode, session)
        if not welcome.get("sessionId"):
            await connection.end()
            message = f"cannot resume session `{session}`: a server of the oldest dialect has no sessions"
            raise UsageError(message, "start a new session without a name, or use `remex serve` there")
        return connection, welcome

    async def _connect(self, mode: SessionMode, session: str | None) -> tuple[Connection, Mapping[str, Any]]:
        """Connects and performs the handshake, each within its time."""
        options = self.options
        late = f"connecting to {self.target} timed out after"
        connection = await limited(dial(self.target), options.connect_timeout, late)
        link = connection.link
        capabilities = ["processGap", "cancel", "consumed"]
        if not link.is_websocket:
            # On a WebSocket, ping and pong serve this purpose.
            capabilities.append("acks")
        params: dict[str, Any] = {
            "clientName": options.client_name,
            "resumeSessionId": None if mode == "new" else session,
            "capabilities": capabilities,
        }
        if mode == "takeOver":
            params["takeover"] = True
        if mode == "new" and session is not None:
            params["sessionName"] = session
        if options.detach_ttl is not None:
            params["detachTtlMs"] = round(options.detach_ttl * 1000)
        self._handshake = self.loop.create_future()
        try:
            self._link = link
            link.attach(self)
            link.send(encode({"id": _HANDSHAKE, "method": "initialize", "params": params}))
            handshake = self._handshake
            both: list[asyncio.Future[Any]] = [handshake, link.closed]
            await asyncio.wait(both, timeout=options.handshake_timeout, return_when=asyncio.FIRST_COMPLETED)
            if handshake.done():
                welcome = handshake.result()
                link.send(b'{"method":"initialized"}')
                # Before any notification, which would overtake it.
                link.flush()
                return connection, welcome
            if link.closed.done():
                reason = await connection.failure(link.closed.result())
                raise UnreachableError(f"cannot connect to {self.target}: {reason}")
            raise TimedOutError(f"the handshake with {self.target} timed out after {options.handshake_timeout:g} s")
        except BaseException as error:
            if isinstance(error, ProtocolError) and isinstance(self.target, Program):
                error.hint = "the program printed something that is not the protocol, such as a greeting of a shell"
            link.abort("the handshake failed")
            await connection.end()
            raise
        finally:
            self._handshake = None

    def _on_connected(self, connection: Connection, welcome: Mapping[str, Any]) -> None:
        """Sends unanswered requests again, in their order, and reads what the queues have missed."""
        self._connection = connection
        self._enabled = frozenset((welcome.get("capabilities") or {}).get("enabled") or ())
        for call in self._pending.values():
            self._send(call)
        for queue in list(self.queues.values()):
            queue.on_reconnect()
        for process_id in list(self._unfollowed):
            self._skip_output(process_id)
        self._change_state(ConnectionState("connected", time.monotonic()))

    def _on_disconnected(self, reason: str) -> None:
        """Fails the requests that cannot be repeated."""
        log.debug("connection lost: %s", reason)
        self._connection, self._enabled = None, frozenset()
        self.disconnects += 1
        self._ack = None
        self._consumed.clear()
        self._body_consumed.clear()
        self._change_state(ConnectionState("reconnecting", time.monotonic()))
        for queue in self.queues.values():
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
        """Fails everything that waits."""
        self._connection = None
        self._change_state(ConnectionState("lost", time.monotonic(), lost))
        pending, self._pending = self._pending, {}
        for call in pending.values():
            self._complete(call, None, _again(lost))
        routes, self.routes = self.routes, {}
        for route in routes.values():
            route.end(_again(lost))
        queues, self.queues = self.queues, {}
        for queue in queues.values():
            queue.fail(_again(lost))

    def _change_state(self, state: ConnectionState) -> None:
        self.state = state
        for watcher in self._watchers:
            watcher.set()


_NOTIFICATIONS: dict[str, Callable[[Session, dict[str, Any]], None]] = {
    "process/output": Session._on_output,
    "process/exited": Session._on_exited,
    "process/closed": Session._on_closed,
    "process/gap": Session._on_gap,
    "flow/mark": Session._on_mark,
    "fs/changed": Session._on_changed,
    "http/request/bodyDelta": Session._on_body,
    "session/ended": Session._on_session_ended,
}


def _checked_welcome(welcome: Any) -> Mapping[str, Any]:
    """Returns the answer to `initialize` if everything that this client uses of it has the right type."""
    with decoding("initialize"):
        # The oldest dialect has no sessions, and says so by its version only.
        is_oldest = welcome.get("sessionId") is None and welcome.get("protocolVersion") == _OLDEST
        if not is_oldest and not isinstance(welcome["sessionId"], str):
            raise ValueError("it has no session id")
        enabled = (welcome.get("capabilities") or {}).get("enabled") or []
        if not isinstance(enabled, list) or not all(isinstance(name, str) for name in enabled):
            raise ValueError("`enabled` must be a list of strings")
        for limit in ("messageBytes", "retainBytes"):
            optional_number(welcome.get("limits") or {}, limit)
        info = welcome.get("environmentInfo") or {}
        if not isinstance(info, dict):
            raise ValueError("`environmentInfo` must be an object")
        optional_text(info, "cwd")
        optional_text(info, "userHomeDir")
        checked: Mapping[str, Any] = welcome
        return checked


def _lost(reason: LostReason, message: str) -> SessionLostError:
    return SessionLostError(reason, message)


def _again(lost: SessionLostError) -> SessionLostError:
    """Returns a copy to raise, so that the tracebacks of several callers do not pile up in one exception."""
    copy = SessionLostError(lost.reason, lost.message.removeprefix("the session is lost: "))
    copy.__cause__ = lost.__cause__
    return copy


def _may_pass(error: RemexError) -> bool:
    """Returns whether another attempt to connect may succeed."""
    return isinstance(error, UnreachableError | TimedOutError) or is_kind(
        error, "sessionAttached", "shuttingDown", "limitExceeded"
    )


def _jittered(pause: float) -> float:
    """Returns between half of a pause and all of it, so that many clients do not reconnect at once."""
    return pause * (0.5 + random.random() / 2)
