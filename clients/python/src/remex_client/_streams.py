"""The streams of a process: events, chunks and bytes of its output. Start at `Events`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ._errors import GapError, RefusedError, decoding, is_unknown_process
from ._event import (
    Chunk,
    Closed,
    Event,
    Exited,
    Gap,
    Stream,
    decode_chunk,
    decode_closed,
    decode_exit,
    decode_gap,
    number,
)
from ._queue import WINDOW_BYTES, EventQueue, ids_of
from ._session import Session

#: How many seconds one request waits for events.
POLL = 20.0


class Events:
    """The events of one process for one consumer, in order and exactly once. `async for` ends after `Closed`."""

    def __init__(self, session: Session, queue: EventQueue, after: int, owner: object) -> None:
        self._session = session
        self._queue = queue
        #: Keeps the handle, and with it the queue, alive.
        self._owner = owner
        self._after = after
        self._consumer = queue.subscribe(after)
        #: Earlier events are no longer in the queue, and are read from the server.
        self._past: deque[Event] = deque()
        self._past_until = queue.removed_seq

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self) -> Event | None:
        """Waits for the next event; None after the last. Cancelling it loses nothing."""
        while True:
            if self._past:
                event = self._past.popleft()
            elif self._after < self._past_until:
                await self._read_past()
                continue
            else:
                taken = self._queue.take(self._consumer)
                if taken is None:
                    if self._queue.closed is not None:
                        return None
                    await self._queue.wait(self._consumer)
                    continue
                event = taken
            if event.seq > self._after:
                self._after = event.seq
                return event

    def _take_one(self) -> Event | None:
        """Returns the next event if it has arrived; raises nothing."""
        while not self._past and self._after >= self._past_until and self._queue.failed is None:
            event = self._queue.take(self._consumer)
            if event is None or event.seq > self._after:
                self._after = self._after if event is None else event.seq
                return event
        return None

    def _take_arrived(self) -> list[Event]:
        """Returns the events that have arrived."""
        return list(iter(self._take_one, None))

    def close(self) -> None:
        """Lifts the backpressure of this consumer."""
        self._queue.unsubscribe(self._consumer)

    def __del__(self) -> None:
        consumer = getattr(self, "_consumer", None)
        if consumer is not None:
            queue = self._queue
            later(self._session, lambda: queue.unsubscribe(consumer))

    async def _read_past(self) -> None:
        until = self._past_until
        params = {**ids_of(self._queue), "afterSeq": self._after, "maxBytes": WINDOW_BYTES}
        reply: dict[str, Any] = {"chunks": [], "nextSeq": until + 1}
        if not self._queue.is_replaced:
            try:
                answer = await self._session.call("process/read", params, timeout=False)
            except RefusedError as error:
                if not is_unknown_process(error):
                    raise
            else:
                # The answer may be that of the new process.
                reply = reply if self._queue.is_replaced else answer
        with decoding("process/read"):
            gap = decode_gap(reply["gap"]) if reply.get("gap") is not None else None
            chunks = [chunk for chunk in map(decode_chunk, reply["chunks"]) if chunk.seq <= until]
            next_seq = number(reply, "nextSeq")
        at = self._after
        if gap is not None:
            at = min(gap.to_seq, until)
            self._past.append(Gap(gap.from_seq, at, gap.bytes, gap.cause))
        for chunk in chunks:
            at = self._pass(at, chunk.seq - 1)
            self._past.append(chunk)
            at = chunk.seq
        at = self._pass(at, min(until, next_seq - 1))
        if at == self._after:
            # The server has no events in this range.
            self._pass(at, until)

    def _pass(self, after: int, until: int) -> int:
        """Adds events for numbers that are not output: the exit, the close, and gaps for dropped events."""
        while after < until:
            seq = after + 1
            exit, closed = self._queue.exit, self._queue.closed
            if exit is not None and exit[0] == seq:
                self._past.append(Exited(seq, exit[1]))
                after = seq
            elif closed is not None and closed.seq == seq:
                self._past.append(closed)
                after = seq
            else:
                known = [at for at in (exit[0] if exit else 0, closed.seq if closed else 0) if at > seq]
                after = min([until, *(at - 1 for at in known)])
                self._past.append(Gap(seq, after, None))
        return after


class Polled(Protocol):
    """A process whose events are polled."""

    async def read(self, after: int = 0, *, max_bytes: int = WINDOW_BYTES, wait: float = 0.0) -> list[Event]:
        """Returns retained events after an event, and waits for some for up to `wait` seconds."""


class PolledEvents:
    """The events of a process of another session, in order; what was dropped is a `Gap`."""

    def __init__(self, process: Polled, after: int) -> None:
        self._process = process
        self._after = after
        self._ready: deque[Event] = deque()
        self._has_exited = self._is_closed = False

    def __aiter__(self) -> PolledEvents:
        return self

    async def __anext__(self) -> Event:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self) -> Event | None:
        """Waits for the next event; None after the last. Cancelling it loses nothing."""
        while not self._ready:
            if self._is_closed:
                return None
            for event in await self._process.read(self._after, wait=POLL):
                if isinstance(event, Exited):
                    if self._has_exited:
                        continue
                    self._has_exited = True
                self._is_closed = self._is_closed or isinstance(event, Closed)
                self._ready.append(event)
                self._after = max(self._after, event.seq)
        return self._ready.popleft()

    def _take_one(self) -> Event | None:
        """Returns the next event if it has arrived."""
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        """Does nothing: a reference holds up no process."""


class Chunks:
    """The output of a process, in order and exactly once. At a gap it raises `GapError`, and can be continued."""

    def __init__(self, events: Events | PolledEvents, stream: Stream | None = None) -> None:
        self._events = events
        self._stream = stream
        self._gap: GapError | None = None

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> Chunk:
        while True:
            if self._gap is not None:
                gap, self._gap = self._gap, None
                raise gap
            # A step without a coroutine, for what has arrived.
            event = self._events._take_one() or await self._events.next()
            if event is None:
                raise StopAsyncIteration
            if (chunk := self._chunk_of(event)) is not None:
                return chunk

    def _chunk_of(self, event: Event) -> Chunk | None:
        if isinstance(event, Chunk):
            return event if self._stream is None or event.stream == self._stream else None
        if isinstance(event, Gap):
            self._gap = GapError(event.bytes)
        return None

    def _take_arrived(self) -> list[Chunk]:
        """Returns the chunks that have arrived."""
        taken: list[Chunk] = []
        while self._gap is None and (event := self._events._take_one()) is not None:
            if (chunk := self._chunk_of(event)) is not None:
                taken.append(chunk)
        return taken

    def close(self) -> None:
        """Lifts the backpressure of this consumer."""
        self._events.close()


class Reader:
    """One stream of a process as bytes, with the methods of `asyncio.StreamReader`.

    At a gap, reading raises `GapError` once, and then continues after it; what it had read before is kept for the next
    call, as it is when a call is cancelled.
    """

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        #: What has arrived and is not read yet: cheap to take from at the beginning and to extend at the end.
        self._rest = bytearray()
        self._has_ended = False

    def close(self) -> None:
        """Lifts the backpressure of this reader."""
        self._chunks.close()

    def at_eof(self) -> bool:
        """Returns whether everything was read."""
        return self._has_ended and not self._rest

    async def read(self, n: int = -1) -> bytes:
        """Reads up to `n` bytes, as soon as there are some; without `n`, everything up to the end."""
        if n == 0:
            return b""
        if n < 0:
            parts = [self._take(len(self._rest))]
            try:
                while not self._has_ended:
                    await self._more()
                    parts.append(self._take(len(self._rest)))
            except BaseException:
                self._rest = bytearray(b"".join(parts))
                raise
            return b"".join(parts)
        if not self._rest:
            await self._more()
        return self._take(n)

    async def readexactly(self, n: int) -> bytes:
        """Reads exactly `n` bytes; raises `asyncio.IncompleteReadError` if the stream ends before that."""
        if n < 0:
            raise ValueError("readexactly size can not be less than zero")
        while len(self._rest) < n:
            if not await self._more():
                raise asyncio.IncompleteReadError(self._take(n), n)
        return self._take(n)

    async def readline(self) -> bytes:
        """Reads a line with its end; less at the end of the stream."""
        return await self.readuntil(b"\n", _is_strict=False)

    async def readuntil(self, separator: bytes = b"\n", *, _is_strict: bool = True) -> bytes:
        """Reads up to a separator, and with it; raises `asyncio.IncompleteReadError` at the end of the stream."""
        if not separator:
            raise ValueError("Separator should be at least one-byte string")
        searched = 0
        while True:
            at = self._rest.find(separator, searched)
            if at >= 0:
                return self._take(at + len(separator))
            searched = max(0, len(self._rest) - len(separator) + 1)
            if not await self._more():
                data = self._take(len(self._rest))
                if _is_strict:
                    raise asyncio.IncompleteReadError(data, None)
                return data

    def _take(self, n: int) -> bytes:
        if n >= len(self._rest):
            data, self._rest = bytes(self._rest), bytearray()
            return data
        with memoryview(self._rest) as view:
            data = bytes(view[:n])
        del self._rest[:n]
        return data

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> bytes:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def _more(self) -> bool:
        if self._has_ended:
            return False
        try:
            chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            self._has_ended = True
            return False
        self._rest += chunk.data
        return True


def later(session: Session, work: Callable[[], None]) -> None:
    """Runs something on the event loop; the garbage collector, which calls this, may run in any thread."""
    try:
        session.loop.call_soon_threadsafe(work)
    except RuntimeError:
        pass  # the loop is closed


def events_of(reply: Mapping[str, Any], after: int) -> list[Event]:
    """Returns the events of an answer to `process/read`."""
    events: list[Event] = [] if reply.get("gap") is None else [decode_gap(reply["gap"])]
    chunks = [decode_chunk(chunk) for chunk in reply["chunks"]]
    events.extend(chunks)
    if not chunks:
        # The answer describes the whole log: while it has chunks, more may follow before the exit.
        last = max(after, number(reply, "nextSeq") - 1)
        if reply.get("exited"):
            events.append(Exited(last, decode_exit(reply)))
        if reply.get("closed"):
            events.append(decode_closed(last, reply))
    return events
