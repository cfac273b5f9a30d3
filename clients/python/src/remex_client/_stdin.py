"""The input of a process. Start at `Stdin`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

from ._errors import RefusedError, RemexError, StdinClosedError, is_kind
from ._queue import EventQueue, ids_of
from ._session import Session

#: The length of one write request, and how many may be unanswered.
WRITE_BYTES = 64 << 10
_WRITES = 8

#: The end-of-file key of a terminal.
_END_OF_FILE = b"\x04"

#: What can be written to a process; text is sent as UTF-8.
Data = str | bytes | bytearray | memoryview

#: The whole input of a process: data, or pieces of it as they become available.
Input = Data | Iterable[Data] | AsyncIterable[Data]


class Stdin:
    """The input of a process.

    Bytes arrive in order and exactly once, also across disconnects. A write waits while the process does not read.
    """

    def __init__(self, session: Session, queue: EventQueue, is_open: bool, is_terminal: bool | None = None) -> None:
        self._session = session
        self._process_id = queue.id
        self._ids = ids_of(queue)
        #: None if it is not known.
        self._is_terminal = is_terminal
        #: Whether the last line that was written to a terminal has no end yet.
        self._is_in_line = False
        #: Whether it may be written to.
        self.is_open = is_open
        self._unanswered: deque[asyncio.Future[Any]] = deque()
        #: Keeps concurrent writes from mixing.
        self._lock = asyncio.Lock()

    async def write(self, data: Data) -> None:
        """Writes; returns once everything is sent, and waits while the process does not read.

        Raises `RefusedError` (the kind is `stdinClosed`) if the process does not accept input. `drain` tells whether
        the server has taken everything.
        """
        data = as_bytes(data)
        async with self._lock:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        for at in range(0, len(data), WRITE_BYTES):
            self._check_open()
            await self._settle(_WRITES - 1)
            params = {**self._ids, **write_params(self._session, data[at : at + WRITE_BYTES])}
            # The first write of a process does not wait for those of others, which may not read.
            _, reply = await self._session.enqueue("process/write", params, is_control=not self._unanswered)
            self._unanswered.append(reply)
        if data:
            self._is_in_line = not data.endswith((b"\n", b"\r", _END_OF_FILE))

    async def drain(self) -> None:
        """Waits until the server has taken everything."""
        async with self._lock:
            await self._settle(0)

    async def close(self) -> None:
        """Closes the input after everything that was written. A terminal gets its end-of-file key, and stays open.

        If it fails or is cancelled, it can be called again.
        """
        async with self._lock:
            if not self.is_open:
                return
            await self._settle(0)
            if not self._is_terminal:
                try:
                    await self._session.call("process/closeStdin", self._ids)
                    self.is_open = False
                except RefusedError as error:
                    if not is_kind(error, "notSupported"):
                        raise
                    self._is_terminal = True
            if self._is_terminal:
                # In the middle of a line, the key only flushes that line.
                await self._write(_END_OF_FILE * 2 if self._is_in_line else _END_OF_FILE)
                await self._settle(0)

    def _check_open(self) -> None:
        if not self.is_open:
            raise _stdin_closed(self._process_id)

    async def _settle(self, left: int) -> None:
        """Waits until at most `left` answers are missing."""
        while self._unanswered:
            reply = self._unanswered[0]
            if not reply.done():
                if len(self._unanswered) <= left:
                    return
                await asyncio.wait([reply])
            self._unanswered.popleft()
            check_accepted(reply.result(), self._process_id)


def as_bytes(data: Data) -> bytes:
    """Returns data as bytes; raises `TypeError` for other types: `bytes(5)` would be five zeros."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"cannot write a value of the type `{type(data).__name__}`: give bytes or text")


def check_input(input: Input) -> Input:
    """Raises `TypeError` for what cannot be an input, before anything is started."""
    if isinstance(input, str | bytes | bytearray | memoryview | AsyncIterable):
        return input
    if isinstance(input, Iterable) and not isinstance(input, Mapping):
        return input
    raise TypeError(
        f"the input cannot be of the type `{type(input).__name__}`: give bytes, text, or an iterable of them"
    )


async def pieces_of(input: Input) -> AsyncIterator[bytes]:
    """Yields the pieces of an input."""
    if isinstance(input, str | bytes | bytearray | memoryview):
        yield as_bytes(input)
    elif isinstance(input, AsyncIterable):
        async for piece in input:
            yield as_bytes(piece)
    else:
        for piece in input:
            yield as_bytes(piece)


def write_params(session: Session, data: bytes) -> dict[str, Any]:
    return {"chunk": bytes(data), "writeId": session.name("w")}


def check_accepted(reply: Mapping[str, Any], process_id: str) -> None:
    # A newer server may have another name for it.
    if reply.get("status") == "accepted" or reply.get("accepted") is True:
        return
    if reply.get("status") == "unknownProcess":
        raise RefusedError(-32600, "unknownProcess", f"the server does not know process `{process_id}`")
    raise _stdin_closed(process_id)


def _stdin_closed(process_id: str) -> RemexError:
    return StdinClosedError(-32600, "stdinClosed", f"the input of process `{process_id}` is closed")
