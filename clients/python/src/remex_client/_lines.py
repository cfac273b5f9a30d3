"""The lines of a process's output. Start at `Lines`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from ._errors import GapError
from ._event import Chunk, Closed, Event, Gap, Stream
from ._streams import Events, PolledEvents

#: Longer lines come in pieces.
MAX_LINE_BYTES = 64 << 10


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


class Lines:
    """The lines of a process. At a gap it raises `GapError`, and can be continued."""

    def __init__(self, events: Events | PolledEvents, stream: Stream | None, max_bytes: int) -> None:
        self._events = events
        self._stream = stream
        # Room for one character: pieces end between characters.
        self._max_bytes = max(4, max_bytes)
        self._partial: dict[Stream, bytes] = {}
        #: The lines of the last event that are still to come, made on demand; shared by all loops over this object.
        self._batches: deque[Batch] = deque()
        #: The gap that follows them.
        self._gap: GapError | None = None

    async def __aiter__(self) -> AsyncIterator[Line]:
        # A generator is several times faster than calls of `__anext__`, and takes a fifth longer if it calls a function
        # to make a line.
        while True:
            while self._batches:
                texts, origin = self._batches[0]
                for text in texts:
                    line = Line()
                    line.text = text
                    line._origin = origin
                    yield line
                self._drop(texts)
            if not await self._more():
                return

    async def __anext__(self) -> Line:
        while True:
            while self._batches:
                texts, origin = self._batches[0]
                for text in texts:
                    return _line(text, origin)
                self._drop(texts)
            if not await self._more():
                raise StopAsyncIteration

    def close(self) -> None:
        """Lifts the backpressure of this consumer."""
        self._events.close()

    async def _more(self) -> bool:
        """Raises the gap after the lines so far, or takes the next event; returns whether there was one."""
        if self._gap is not None:
            gap, self._gap = self._gap, None
            raise gap
        event = await self._events.next()
        if event is not None:
            self._take_event(event)
        return event is not None

    def _take_arrived(self) -> list[Line]:
        """Returns the lines that have arrived."""
        lines: list[Line] = []
        while True:
            while self._batches:
                texts, origin = self._batches.popleft()
                for text in texts:
                    line = Line()
                    line.text = text
                    line._origin = origin
                    lines.append(line)
            if self._gap is not None or (event := self._events._take_one()) is None:
                return lines
            self._take_event(event)

    def _drop(self, texts: Iterator[str]) -> None:
        """Removes a batch that is used up, unless another loop has done it."""
        if self._batches and self._batches[0][0] is texts:
            self._batches.popleft()

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
        partial, stream = self._partial.pop(chunk.stream, b""), chunk.stream
        first, end = chunk.data.find(b"\n"), chunk.data.rfind(b"\n") + 1
        if not end or len(partial) + first > self._max_bytes or len(chunk.data) > self._max_bytes:
            self._take_any_length(chunk, partial + chunk.data)
            return
        # All but the first, which has begun before, are decoded at once: no line can be too long, and a line feed is
        # never part of a character.
        text = str(memoryview(chunk.data)[first + 1 : end], "utf-8", "replace")
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        texts = text.split("\n")
        texts.pop()
        texts.insert(0, _text((partial + chunk.data[:first]).removesuffix(b"\r")))
        self._partial[stream] = chunk.data[end:]
        self._push(texts, Origin(stream, chunk.seq))

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


def _line(text: str, origin: Origin) -> Line:
    line = Line()
    line.text = text
    line._origin = origin
    return line


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
