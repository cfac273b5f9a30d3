"""One connection: lines on a socket or on the streams of a program, or a WebSocket.

A link splits what it receives into messages without copying them, and gathers what it sends during one turn of the
event loop into one write. Start at `Link`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol, cast

_FIRST_BUFFER = 1 << 20

#: The free space of the buffer, so that one system call reads several messages.
_MIN_ROOM = 256 << 10

#: The longest message of a server is an answer with a whole file: 512 MiB in base64, and room to spare.
_MAX_MESSAGE = 1 << 30

#: How much may arrive before there is a handler: more than an error or the greeting of a shell.
_MAX_UNASKED = 256 << 10

#: What announces a binary message between lines: a byte that no line begins with, and the length.
_LINE_MARK = 0
_LINE_HEAD = struct.Struct("!BI")

_TEXT, _BINARY, _CONTINUATION, _CLOSE, _PING, _PONG = 1, 2, 0, 8, 9, 10

#: The first byte of a frame with a whole binary message.
_WHOLE_BINARY = 0x82

#: Up to this length, masking as one number is faster.
_SHORT = 512


class Handler(Protocol):
    """The receiver of the messages of a link."""

    def on_message(self, buffer: bytearray, start: int, end: int) -> None:
        """Handles the message in this part of the buffer, which is valid during the call only."""

    def on_binary(self, buffer: bytearray, start: int, end: int) -> None:
        """The same for a binary message, once the link accepts them."""

    def on_pong(self) -> None:
        """Handles the answer to a ping."""

    def take_notes(self) -> Iterator[bytes]:
        """Returns notifications that are due, just before something is written."""


class Link(asyncio.BufferedProtocol):
    """One connection. `closed` is done once it has ended, and has the reason."""

    def __init__(self, is_websocket: bool) -> None:
        self.is_websocket = is_websocket
        #: Whether the server has enabled binary messages. Until then, what looks like one is text.
        self.is_binary = False
        self.handler: Handler | None = None
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        #: The reason of a close frame.
        self.close_reason = ""
        #: The head of the HTTP response to the upgrade, of a WebSocket.
        self.upgraded: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = bytearray(_FIRST_BUFFER)
        self._view = memoryview(self._buffer)
        #: The bytes between these are not handled yet; those before `_scanned` have no line end.
        self._start = self._end = self._scanned = 0
        self._is_upgrading = is_websocket
        #: How many bytes of the body of a response are awaited, and the future that is done when they are there.
        self._body: tuple[int, asyncio.Future[None]] | None = None
        self._fragments: bytearray | None = None
        self._first_opcode = _TEXT
        self._out: list[bytes] = []
        self._pong: bytes | None = None
        self._is_flush_due = False
        #: Whether much of what was sent still waits for the server to read it.
        self._is_full = False

    def attach(self, handler: Handler) -> None:
        """Sets the handler of messages, and gives it those that have arrived already."""
        self.handler = handler
        if self._end > self._start:
            self._take()

    # Sending.

    def send(self, message: bytes) -> None:
        """Sends a message, in one write with all others of this turn of the event loop."""
        if self.is_websocket:
            self._out.append(frame(_TEXT, message))
        else:
            self._out.append(message)
            self._out.append(b"\n")
        self.wake()

    def send_binary(self, pieces: Sequence[bytes]) -> None:
        """Sends the pieces of a binary message as `send` does."""
        if self.is_websocket:
            self._out.append(frame(_BINARY, b"".join(pieces)))
        else:
            self._out.append(_LINE_HEAD.pack(_LINE_MARK, sum(map(len, pieces))))
            self._out.extend(pieces)
        self.wake()

    def ping(self) -> None:
        """Sends a ping of a WebSocket."""
        self._out.append(frame(_PING, b""))
        self.wake()

    def wake(self) -> None:
        """Schedules a flush."""
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Writes everything that is waiting."""
        self._is_flush_due = False
        if self._transport is None or self._transport.is_closing():
            return
        urgent: list[bytes] = []
        # Only the newest of these matter, so a server that does not read must not collect them.
        if self._pong is not None and not self._is_full:
            urgent.append(frame(_PONG, self._pong))
            self._pong = None
        if self.handler is not None and not self._is_full:
            for note in self.handler.take_notes():
                urgent.append(frame(_TEXT, note) if self.is_websocket else note + b"\n")
        out = urgent + self._out
        self._out.clear()
        if out:
            self._transport.write(b"".join(out))

    def write_raw(self, data: bytes) -> None:
        """Writes the request for an upgrade."""
        if self._transport is not None:
            self._transport.write(data)

    def finish(self) -> None:
        """Sends what is waiting, and closes the connection cleanly."""
        self.flush()
        if self._transport is not None and not self._transport.is_closing():
            if self.is_websocket:
                self._transport.write(frame(_CLOSE, struct.pack("!H", 1000)))
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Ends the connection at once; no further message is handled."""
        self.handler = None
        if not self.closed.done():
            self.closed.set_result(reason)
        if not self.upgraded.done():
            self.upgraded.set_exception(ConnectionError(reason))
            self.upgraded.exception()  # silences the warning if nobody awaits it
        self._end_body()
        # Only once: aborting the transport of a closed pipe again fails.
        transport, self._transport = self._transport, None
        if transport is not None and not transport.is_closing():
            transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of other event loops, such as uvloop, are not instances of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.wake()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._make_room(_MIN_ROOM)
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed.done():
            return
        self._end += nbytes
        if self.handler is not None or self._is_upgrading:
            self._take()
            # Those that were woken run before the flush, so it writes what they send, without another turn.
            self.wake()
        elif self._body is not None and self._end - self._start >= self._body[0]:
            self._end_body()
        elif self._end - self._start > _MAX_UNASKED:
            self.abort("the server sent too much before it was asked for anything")

    def _take(self) -> None:
        if self._is_upgrading:
            self._take_upgrade()
        elif self.is_websocket:
            self._take_frames()
        else:
            self._take_lines()

    async def body(self, length: int, timeout: float) -> bytes:
        """Returns the first bytes of the body of a response, as far as they arrive in time."""
        if self._end - self._start < length and not self.closed.done():
            self._body = (length, asyncio.get_running_loop().create_future())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._body[1], timeout)
        return bytes(self._view[self._start : min(self._end, self._start + length)])

    def _end_body(self) -> None:
        if self._body is not None and not self._body[1].done():
            self._body[1].set_result(None)

    def feed(self, data: bytes) -> None:
        """Handles data of a transport that does not read into the buffer."""
        self._make_room(len(data))
        self._view[self._end : self._end + len(data)] = data
        self.buffer_updated(len(data))

    def eof_received(self) -> None:
        # An unterminated last line is dropped: the connection may have ended in the middle of it.
        self.abort("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort("the connection was closed" if exc is None else str(exc) or type(exc).__name__)

    # Splitting.

    def _make_room(self, room: int) -> None:
        if len(self._buffer) - self._end >= room:
            return
        used = self._end - self._start
        if used + room > len(self._buffer) or self._start < used:
            larger = bytearray(max(len(self._buffer), 2 * (used + room)))
            larger[:used] = self._view[self._start : self._end]
            self._buffer = larger
            self._view = memoryview(larger)
        else:
            # The two parts do not overlap.
            self._view[:used] = self._view[self._start : self._end]
        self._scanned -= self._start
        self._start, self._end = 0, used

    def _handled(self) -> None:
        if self._start == self._end:
            self._start = self._end = self._scanned = 0
            if len(self._buffer) > 16 * _FIRST_BUFFER:
                # After a very long message.
                self._buffer = bytearray(_FIRST_BUFFER)
                self._view = memoryview(self._buffer)

    def _take_lines(self) -> None:
        while (handler := self.handler) is not None:
            buffer, start, available = self._buffer, self._start, self._end - self._start
            if self.is_binary and available > 0 and buffer[start] == _LINE_MARK:
                if available < _LINE_HEAD.size:
                    break
                _, length = _LINE_HEAD.unpack_from(buffer, start)
                start += _LINE_HEAD.size
                end = start + length
                if end > self._end:
                    # The buffer grows with what has arrived, not with the length that a message claims.
                    if length > _MAX_MESSAGE:
                        self.abort("the server sent a message that is too long")
                    break
                self._start = self._scanned = end
                handler.on_binary(buffer, start, end)
                continue
            end = buffer.find(b"\n", self._scanned, self._end)
            if end < 0:
                self._scanned = self._end
                if available > _MAX_MESSAGE:
                    self.abort("the server sent a message that is too long")
                break
            self._start = self._scanned = end + 1
            if end > start and (end - start > 2 or buffer[start:end].strip()):
                handler.on_message(buffer, start, end)
        self._handled()

    def _take_upgrade(self) -> None:
        end = self._buffer.find(b"\r\n\r\n", self._start, self._end)
        if end < 0:
            if self._end - self._start > 64 << 10:
                self.abort("the server sent a response head that is too long")
            return
        head = bytes(self._view[self._start : end])
        self._start = self._scanned = end + 4
        self._is_upgrading = False
        if not self.upgraded.done():
            self.upgraded.set_result(head)

    def _take_frames(self) -> None:
        buffer = self._buffer
        while self.handler is not None:
            start, available = self._start, self._end - self._start
            if available < 2:
                break
            first, length, head = buffer[start], buffer[start + 1], 2
            if length & 0x80:
                return self.abort("the server sent an invalid frame: it is masked")
            if length == 126:
                if available < 4:
                    break
                length, head = int.from_bytes(buffer[start + 2 : start + 4], "big"), 4
            elif length == 127:
                if available < 10:
                    break
                length, head = int.from_bytes(buffer[start + 2 : start + 10], "big"), 10
            if length > _MAX_MESSAGE:
                return self.abort("the server sent a message that is too long")
            if available < head + length:
                # The buffer grows with what has arrived, not with the length that a frame claims.
                break
            start += head
            self._start = end = start + length
            if first == _WHOLE_BINARY and self.is_binary and self._fragments is None:
                self.handler.on_binary(buffer, start, end)
            else:
                self._take_frame(first, start, end)
        self._handled()
        return None

    def _take_frame(self, first: int, start: int, end: int) -> None:
        is_final, opcode = first & 0x80, first & 0x0F
        if first & 0x70:
            self.abort("the server sent an invalid frame: it uses an extension")
        elif opcode in (_TEXT, _BINARY) and is_final and self._fragments is None:
            self._take_message(opcode, self._buffer, start, end)
        elif opcode in (_TEXT, _BINARY, _CONTINUATION):
            self._take_fragment(bool(is_final), opcode, start, end)
        elif opcode == _PING:
            # One pong for the newest ping answers those before it as well.
            self._pong = bytes(self._view[start:end])
            self.wake()
        elif opcode == _PONG:
            if self.handler is not None:
                self.handler.on_pong()
        elif opcode == _CLOSE:
            code = int.from_bytes(self._view[start : start + 2], "big") if end - start >= 2 else 1000
            self.close_reason = str(self._view[start + 2 : end], "utf-8", "replace")
            why = f": {self.close_reason}" if self.close_reason else f" (code {code})"
            self.abort(f"the server closed the connection{why}")
        else:
            self.abort(f"the server sent an invalid frame: opcode {opcode}")

    def _take_fragment(self, is_final: bool, opcode: int, start: int, end: int) -> None:
        if (self._fragments is None) == (opcode == _CONTINUATION):
            return self.abort("the server sent an invalid frame: fragments in the wrong order")
        if self._fragments is None:
            self._fragments, self._first_opcode = bytearray(), opcode
        self._fragments += self._view[start:end]
        if len(self._fragments) > _MAX_MESSAGE:
            return self.abort("the server sent a message that is too long")
        if is_final:
            whole, self._fragments = self._fragments, None
            self._take_message(self._first_opcode, whole, 0, len(whole))
        return None

    def _take_message(self, opcode: int, buffer: bytearray, start: int, end: int) -> None:
        if self.handler is None:
            return
        if opcode == _BINARY and self.is_binary:
            self.handler.on_binary(buffer, start, end)
        else:
            self.handler.on_message(buffer, start, end)


def frame(opcode: int, payload: bytes) -> bytes:
    """Returns a frame of a client: masked, as the standard demands."""
    length = len(payload)
    if length < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, length)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, length)
    key = os.urandom(4)
    if length <= _SHORT:
        mask = int.from_bytes((key * (length // 4 + 1))[:length], "big")
        return b"".join((head, key, (int.from_bytes(payload, "big") ^ mask).to_bytes(length, "big")))
    masked = bytearray(length)
    # Every fourth byte has the same key; a loop over the bytes would be slow.
    for index in range(4):
        masked[index::4] = payload[index::4].translate(_xor(key[index]))
    return b"".join((head, key, masked))


@cache
def _xor(key: int) -> bytes:
    return bytes(byte ^ key for byte in range(256))
