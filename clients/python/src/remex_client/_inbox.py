"""The messages of a server: decoded, and routed to their receivers.

Events go to the queues of processes, notifications to the routes, answers to the session. Start at `Inbox`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ._binary import MESSAGE, OUTPUT, read_message, read_output
from ._codec import bytes_of, decode_base64
from ._errors import ProtocolError, RefusedError
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
    number_or_none,
    optional_number,
    stream_of,
)
from ._queue import AFTER_EVERYTHING, EventQueue
from ._route import Route, RouteKey

log = logging.getLogger("remex_client")

#: The most frequent message in its usual spelling; everything else is decoded as JSON.
_OUTPUT = re.compile(
    rb'\{"method":"process/output","params":\{"processId":"([^"\\]*)",(?:"incarnation":(\d{1,18}),)?'
    rb'"seq":(\d{1,18}),"stream":"(\w+)","chunk":"'
)

#: The same for the message that follows every 64 KiB or so of output.
_MARK = re.compile(rb'\{"method":"flow/mark","params":\{"mark":(\d{1,18})\}\}\r?')


class Owner(Protocol):
    """What an inbox needs of its session."""

    routes: dict[RouteKey, Route]

    def queue_for(self, process_id: str, incarnation: int | None) -> EventQueue | None:
        """Returns the queue that an event is for, if there is one."""

    def on_answer(self, call_id: object, message: dict[str, Any], *, is_binary: bool) -> None:
        """Handles the answer to a request; in that of a binary message, bytes are bytes."""

    def on_request(self, call_id: object) -> None:
        """Refuses a request of the server."""

    def report_discarded(self, process_id: str, seq: int, incarnation: int | None) -> None:
        """Tells the server that everything up to an event is consumed, which nobody here follows."""

    def on_closed(self, process_id: str, incarnation: int | None) -> None:
        """Forgets a process of which nothing more arrives."""

    def on_mark(self, mark: int) -> None:
        """Handles a mark, which must be acknowledged."""

    def on_protocol_error(self, what: str) -> None:
        """Handles an invalid message that names no process, watch or request."""

    def take_notes(self) -> Iterator[bytes]:
        """Returns notifications that are waiting to be sent."""


class Inbox:
    """The messages that a link receives."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        #: How many messages have arrived, and how many of them prove that the server receives ours.
        self.received = self.answers = 0

    def take_notes(self) -> Iterator[bytes]:
        """Returns notifications that are waiting to be sent."""
        return self._owner.take_notes()

    def on_pong(self) -> None:
        """Counts a sign of life."""
        self.received += 1
        self.answers += 1

    def on_message(self, buffer: bytearray, start: int, end: int) -> None:
        """Handles a message."""
        self.received += 1
        match = _OUTPUT.match(buffer, start, end)
        if match is not None and buffer[end - 3 : end] == b'"}}':
            try:
                data = decode_base64(memoryview(buffer)[match.end() : end - 3])
                process_id, seq, stream = match[1].decode(), int(match[3]), match[4].decode()
                incarnation = None if match[2] is None else int(match[2])
            except ValueError:
                pass  # spelled differently, or invalid: decoded as JSON below
            else:
                chunk = Chunk(seq, stream_of(stream), data)
                if (queue := self._owner.queue_for(process_id, incarnation)) is not None:
                    queue.on_output(chunk, incarnation)
                else:
                    self._owner.report_discarded(process_id, seq, incarnation)
                return
        if (match := _MARK.fullmatch(buffer, start, end)) is not None:
            self._owner.on_mark(int(match[1]))
            return
        try:
            self._on_object(json.loads(str(memoryview(buffer)[start:end], "utf-8")), is_binary=False)
        except (ValueError, RecursionError) as error:
            self._owner.on_protocol_error(str(error))

    def on_binary(self, buffer: bytearray, start: int, end: int) -> None:
        """Handles a binary message."""
        kind = buffer[start] if start < end else 0
        if kind in b"{ \t\r\n":
            # JSON all the same.
            self.on_message(buffer, start, end)
            return
        self.received += 1
        try:
            if kind == OUTPUT:
                process_id, session_id, incarnation, chunk = read_output(buffer, start, end)
                if session_id is not None:
                    self._take_observed(session_id, process_id, incarnation, chunk)
                elif (queue := self._owner.queue_for(process_id, incarnation)) is not None:
                    queue.on_output(chunk, incarnation)
                else:
                    self._owner.report_discarded(process_id, chunk.seq, incarnation)
            elif kind == MESSAGE:
                self._on_object(read_message(buffer, start, end), is_binary=True)
            else:
                raise ValueError(f"no binary message begins with the byte {kind}")
        except (ValueError, RecursionError) as error:
            self._owner.on_protocol_error(str(error))

    def _take_observed(self, session_id: str, process_id: str, incarnation: int | None, event: Event) -> None:
        """Handles an event of an observed session, whose processes may have the same ids as ours."""
        if (route := self._owner.routes.get(("session", session_id))) is not None:
            note = {"processId": process_id, "incarnation": incarnation, "event": event}
            route.push(note, len(process_id) + len(getattr(event, "data", b"")))

    def _on_object(self, message: Any, *, is_binary: bool) -> None:
        if not isinstance(message, dict):
            raise ValueError("a message must be one JSON object")
        method, params, call_id = message.get("method"), message.get("params"), message.get("id")
        if method is None:
            if "result" not in message and "error" not in message:
                raise ValueError("a message has neither a method nor a result")
            self.answers += 1
            self._owner.on_answer(call_id, message, is_binary=is_binary)
        elif not isinstance(method, str):
            raise ValueError("a method must be a string")
        elif call_id is not None:
            self._owner.on_request(call_id)
        elif method in _NOTIFICATIONS:
            try:
                if not isinstance(params, dict):
                    raise ValueError("params must be an object")
                _NOTIFICATIONS[method](self, params)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._on_invalid_notification(params, f"cannot decode `{method}`: {error}")
        else:
            log.debug("unknown notification `%s`", method)

    def _on_process(self, params: dict[str, Any], event: Event) -> None:
        session_id, process_id = params.get("sessionId"), params["processId"]
        if not isinstance(process_id, str):
            raise ValueError("`processId` must be a string")
        incarnation = optional_number(params, "incarnation")
        if session_id is not None:
            self._take_observed(session_id, process_id, incarnation, event)
            return
        queue = self._owner.queue_for(process_id, incarnation)
        if queue is None:
            self._owner.report_discarded(process_id, event.seq, incarnation)
        if isinstance(event, Closed):
            self._owner.on_closed(process_id, incarnation)
        if queue is not None:
            queue.on_event(event, incarnation)

    def _on_output(self, params: dict[str, Any]) -> None:
        self._on_process(params, decode_chunk(params))

    def _on_exited(self, params: dict[str, Any]) -> None:
        self._on_process(params, Exited(number(params, "seq"), decode_exit(params)))

    def _on_closed(self, params: dict[str, Any]) -> None:
        self._on_process(params, decode_closed(number(params, "seq"), params))

    def _on_gap(self, params: dict[str, Any]) -> None:
        self._on_process(params, decode_gap(params))

    def _on_mark(self, params: dict[str, Any]) -> None:
        self._owner.on_mark(number(params, "mark"))

    def _on_changed(self, params: dict[str, Any]) -> None:
        if not isinstance(params["changes"], list):
            raise ValueError("`changes` must be a list")
        if (route := self._owner.routes.get(("watch", number(params, "watchId")))) is not None:
            route.push(params)

    def _on_body(self, params: dict[str, Any]) -> None:
        if (route := self._owner.routes.get(("http", params["requestId"]))) is not None:
            params["data"] = bytes_of(params["deltaBase64"])
            number(params, "seq")
            route.push(params)

    def _on_session_ended(self, params: dict[str, Any]) -> None:
        if (route := self._owner.routes.get(("session", params["sessionId"]))) is not None:
            route.end(RefusedError(-32600, "unknownSession", f"session `{params['sessionId']}` has ended"))

    def _on_invalid_notification(self, params: object, what: str) -> None:
        """Fails what a notification names: a process, request or watch. One that names nothing breaks the protocol."""
        log.warning("invalid notification: %s", what)
        error = ProtocolError(what)
        ids = params if isinstance(params, dict) else {}
        process_id, session_id = ids.get("processId"), ids.get("sessionId")
        if isinstance(process_id, str):
            if session_id is not None:
                if (
                    isinstance(session_id, str)
                    and (route := self._owner.routes.get(("session", session_id))) is not None
                ):
                    route.push({"processId": process_id, "incarnation": None, "event": error})
            else:
                incarnation = number_or_none(ids.get("incarnation"))
                if (queue := self._owner.queue_for(process_id, incarnation)) is not None:
                    queue.on_protocol_error(error)
                else:
                    self._owner.report_discarded(process_id, AFTER_EVERYTHING, incarnation)
            return
        for key in (("http", ids.get("requestId")), ("watch", ids.get("watchId"))):
            if isinstance(key[1], str) or number_or_none(key[1]) is not None:
                if (route := self._owner.routes.get(key)) is not None:  # type: ignore[arg-type]
                    route.end(error)
                return
        raise ValueError(what)


_NOTIFICATIONS: dict[str, Callable[[Inbox, dict[str, Any]], None]] = {
    "process/output": Inbox._on_output,
    "process/exited": Inbox._on_exited,
    "process/closed": Inbox._on_closed,
    "process/gap": Inbox._on_gap,
    "flow/mark": Inbox._on_mark,
    "fs/changed": Inbox._on_changed,
    "http/request/bodyDelta": Inbox._on_body,
    "session/ended": Inbox._on_session_ended,
}
