"""The lines of a process's output. Start at `Lines`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import methodcaller
from typing import NamedTuple

from ._errors import GapError
from ._event import Chunk, Closed, Event, Gap, Stream
from ._streams import Events, PolledEvents

#: Longer lines come in pieces.
MAX_LINE_BYTES = 64 << 10

_SPLIT = methodcaller("split", "\n")


class Origin(NamedTuple):
    """Where a line comes from; all lines of an event share it."""

    stream: Stream
    seq: int
    is_continued: bool = False


class Line:
    """A line of output without its end; invalid UTF-8 is replaced."""

    # Made millions of times a second, so it has few attributes, and who makes it sets them: a call of `__init__` takes
    # longer than the rest of making it.
    __slots__ = ("_origin", "text")
    text: str
    _origin: Origin

    @property
    def stream(self) -> Stream:
        """Where it was printed."""
        return self._origin.stream

    @property
    def seq(self) -> int:
        """The event that completed it."""
        return self._origin.seq

    @property
    def is_continued(self) -> bool:
        """Whether the line was too long, and the next piece on the same stream continues it."""
        return self._origin.is_continued

    def __repr__(self) -> str:
        return f"Line({self.text!r}, {self._origin})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and (self.text, self._origin) == (other.text, other._origin)

    def __hash__(self) -> int:
        return hash((self.text, self._origin))


#: The texts of lines, and where all of them come from.
Batch = tuple[Iterator[str], Origin]


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Lines that arrived at once and have everything but their text in common."""

    #: Each without its end; invalid UTF-8 is replaced.
    texts: list[str]
    #: Where they were printed.
    stream: Stream
    #: The event that completed them.
    seq: int
    #: Whether each of them was too long, and the next piece on the same stream continues it.
    is_continued: bool


class Lines:
    """The lines of a process. At a gap it raises `GapError`, and can be continued."""

    def __init__(self, events: Events | PolledEvents, stream: Stream | None, max_bytes: int) -> None:
        self._events = events
        self._stream = stream
        # Room for one character: pieces end between characters.
        self._max_bytes = max(4, max_bytes)
        self._partial: dict[Stream, bytes] = {}
        #: The texts of the lines that come next, and where they come from; shared by all loops over this object.
        self._current: Batch = (iter(()), Origin("unknown", 0))
        #: Those lines, unless there are none yet, and all after them.
        self._batches: deque[Batch] = deque()
        #: The gap that follows them.
        self._gap: GapError | None = None

    async def __aiter__(self) -> AsyncIterator[Line]:
        # A generator is faster than calls of `__anext__`; a function that makes the line would take a fifth longer.
        while True:
            texts, origin = self._current
            for text in texts:
                line = Line()
                line.text = text
                line._origin = origin
                yield line
            if not await self._advance(texts):
                return

    async def __anext__(self) -> Line:
        while True:
            texts, origin = self._current
            for text in texts:
                return line_of(text, origin)
            if not await self._advance(texts):
                raise StopAsyncIteration

    async def batches(self) -> AsyncIterator[LineBatch]:
        """Returns the lines without an object for each, which takes about a third less time.

        All loops over this object share its lines, whichever way they take them.

            async for batch in process.lines().batches():
                for text in batch.texts:
                    ...
        """
        while True:
            texts, origin = self._current
            if rest := list(texts):
                yield LineBatch(rest, *origin)
            if not await self._advance(texts):
                return

    def close(self) -> None:
        """Lifts the backpressure of this consumer."""
        self._events.close()

    async def _advance(self, used: Iterator[str]) -> bool:
        """Goes on to the lines after those that are used up, unless another loop has; returns whether there are any."""
        while not self._advance_arrived(used):
            if not await self._more():
                return False
        return True

    def _advance_arrived(self, used: Iterator[str]) -> bool:
        if self._batches and self._batches[0][0] is used:
            self._batches.popleft()
        if self._batches:
            self._current = self._batches[0]
        return self._current[0] is not used

    async def _more(self) -> bool:
        """Raises the gap after the lines so far, or takes the next event; returns whether there was one."""
        if self._gap is not None:
            gap, self._gap = self._gap, None
            raise gap
        event = await self._events.next()
        if event is not None:
            self._take_event(event)
        return event is not None

    def _take_arrived(self) -> bool:
        """Takes the events that have arrived, up to a gap; returns whether there were any."""
        has_taken = False
        while self._gap is None and (event := self._events._take_one()) is not None:
            self._take_event(event)
            has_taken = True
        return has_taken

    def _push(self, texts: list[str], origin: Origin) -> None:
        if texts:
            self._batches.append((iter(texts), origin))

    def _take_event(self, event: Event) -> None:
        if isinstance(event, Chunk):
            if self._stream is None or event.stream == self._stream:
                self._take_chunk(event)
        elif isinstance(event, Gap):
            self._finish(event.seq)
            self._gap = GapError(event.bytes)
        elif isinstance(event, Closed):
            self._finish(event.seq)

    def _take_chunk(self, chunk: Chunk) -> None:
        data, stream = chunk.data, chunk.stream
        partial = self._partial.pop(stream, b"")
        first, last = data.find(b"\n"), data.rfind(b"\n")
        if first < 0 or len(partial) + first > self._max_bytes or len(data) > self._max_bytes:
            self._take_any_length(chunk, partial + data)
            return
        # All are decoded at once: no line can be too long, and a line feed is never part of a character.
        text = b"".join((partial, memoryview(data)[:last])).decode("utf-8", "replace")
        if "\r" in text:
            text = (text + "\n").replace("\r\n", "\n")[:-1]
        self._partial[stream] = data[last + 1 :]
        # Split when the first is taken, so that few of the texts of many events are in memory. Nothing of it runs as
        # Python code, so an interrupt cannot lose any.
        texts = chain.from_iterable(map(_SPLIT, (text,)))
        self._batches.append((texts, Origin(stream, chunk.seq)))

    def _take_any_length(self, chunk: Chunk, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        origin = Origin(chunk.stream, chunk.seq)
        texts: list[str] = []
        for raw in whole:
            pieces, last = self._pieces(raw)
            if pieces:
                self._push(texts, origin)
                self._push(pieces, origin._replace(is_continued=True))
                texts = []
            texts.append(_text(last[:-1] if last.endswith(b"\r") else last))
        self._push(texts, origin)
        pieces, self._partial[chunk.stream] = self._pieces(rest)
        self._push(pieces, origin._replace(is_continued=True))

    def _pieces(self, raw: bytes) -> tuple[list[str], bytes]:
        """Returns pieces of what is too long for a line, and the rest."""
        pieces: list[str] = []
        at = 0
        while len(raw) - at > self._max_bytes:
            end = at + self._max_bytes
            # Back to the beginning of a character, if there is one nearby.
            while end > at + self._max_bytes - 3 and raw[end] & 0xC0 == 0x80:
                end -= 1
            if raw[end] & 0xC0 == 0x80:
                end = at + self._max_bytes
            pieces.append(_text(raw[at:end]))
            at = end
        return pieces, raw[at:] if at else raw

    def _finish(self, seq: int) -> None:
        for stream, raw in self._partial.items():
            self._push([_text(raw)] if raw else [], Origin(stream, seq))
        self._partial.clear()


def line_of(text: str, origin: Origin) -> Line:
    """Makes a line."""
    line = Line()
    line.text = text
    line._origin = origin
    return line


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
