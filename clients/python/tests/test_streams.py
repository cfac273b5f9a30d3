"""The streams of a process as bytes and lines, without a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest

from remex_client import Chunk, Closed, Event, Gap, GapError
from remex_client._lines import Lines
from remex_client._streams import Reader


class Pieces:
    """What a reader reads from."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)

    async def __anext__(self) -> Chunk:
        for data in self._pieces:
            return Chunk(1, "stdout", data)
        raise StopAsyncIteration

    def close(self) -> None:
        pass


def reader(pieces: Iterable[bytes]) -> Reader:
    chunks: Any = Pieces(pieces)
    return Reader(chunks)


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_reading_in_parts_gives_what_was_written(size: int) -> None:
    text = b"one\ntwo\n\nthree, four; five"
    stream = reader(text[at : at + size] for at in range(0, len(text), size))
    assert await stream.readline() == b"one\n"
    assert await stream.readexactly(5) == b"two\n\n"
    assert await stream.readuntil(b", ") == b"three, "
    assert await stream.read(0) == b""
    assert (await stream.read(1), await stream.read(1)) == (b"f", b"o")
    assert await stream.read() == b"ur; five"
    assert stream.at_eof()
    assert await stream.readline() == b""
    with pytest.raises(asyncio.IncompleteReadError) as incomplete:
        await reader([b"abc"]).readexactly(5)
    assert incomplete.value.partial == b"abc"
    with pytest.raises(asyncio.IncompleteReadError):
        await reader([b"abc"]).readuntil(b"x")
    for wrong in (reader([]).readexactly(-1), reader([]).readuntil(b"")):
        with pytest.raises(ValueError):
            await wrong


class Source:
    """What lines are made of."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = iter(events)

    async def next(self) -> Event | None:
        return next(self._events, None)


def lines_of(events: Iterable[Event], max_bytes: int = 65536) -> Lines:
    source: Any = Source(events)
    return Lines(source, None, max_bytes)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_lines_are_the_same_however_output_is_split(size: int) -> None:
    text = b"one\ntwo\r\n\n\r\r\ncaf\xc3\xa9 \xc3\n" + "é".encode() * 5 + b"\nlast\r"
    chunks: list[Event] = [
        Chunk(n + 1, "stdout", text[at : at + size]) for n, at in enumerate(range(0, len(text), size))
    ]
    found = lines_of([*chunks, Closed(len(chunks) + 1)])
    assert [line.text async for line in found] == ["one", "two", "", "\r", "café \ufffd", "ééééé", "last\r"]
    pieces = lines_of([*chunks, Closed(len(chunks) + 1)], 4)
    assert [line.text async for line in pieces if line.is_continued] == [
        "café"[:3] if False else "caf",
        "éé",
        "éé",
        "last",
    ]


async def test_lines_continue_after_a_gap_and_after_a_break() -> None:
    lines = lines_of([Chunk(1, "stdout", b"a\nb\nc\nd"), Gap(2, 3, 5), Chunk(4, "stderr", b"e\nf\n"), Closed(5)])
    async for line in lines:
        assert (line.text, line.stream, line.seq, line.is_continued) == ("a", "stdout", 1, False)
        break
    assert (await lines.__anext__()).text == "b"
    rest = []
    with pytest.raises(GapError):
        async for line in lines:
            rest.append((line.text, line.seq))
    assert rest == [("c", 1), ("d", 3)]
    assert [(line.stream, line.text) async for line in lines] == [("stderr", "e"), ("stderr", "f")]


async def test_loops_over_the_same_lines_share_them() -> None:
    lines = lines_of([Chunk(1, "stdout", b"a\nb\nc\n"), Chunk(2, "stdout", b"d\ne\nf\n"), Closed(3)])
    loops = [lines.__aiter__(), lines.__aiter__()]
    assert [(await loops[turn].__anext__()).text for turn in (0, 1, 1, 1, 0)] == ["a", "b", "c", "d", "e"]
    assert [line.text async for line in loops[1]] == ["f"]
    assert [line.text async for line in loops[0]] == []


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_batches_have_the_texts_of_all_lines(size: int) -> None:
    text = b"one\ntwo\r\n\ncaf\xc3\xa9\ntoo long\nlast"
    events: list[Event] = []
    for at in range(0, len(text), size):
        for stream in ("stdout", "stderr"):
            events.append(Chunk(len(events) + 1, stream, text[at : at + size]))
    events.append(Closed(len(events) + 1))
    lines = [(line.text, line.stream, line.seq, line.is_continued) async for line in lines_of(events, 6)]
    batches = [batch async for batch in lines_of(events, 6).batches()]
    assert all(batch.texts for batch in batches)
    assert [(text, b.stream, b.seq, b.is_continued) for b in batches for text in b.texts] == lines
    assert [text for text, stream, _, _ in lines if stream == "stderr"] == [
        *("one", "two", "", "café", "too lo", "ng", "last")
    ]
    assert [text for text, _, _, is_continued in lines if is_continued] == ["too lo"] * 2


async def test_batches_and_lines_share_what_arrives() -> None:
    lines = lines_of([Chunk(1, "stdout", b"a\nb\nc\nd\ne"), Gap(2, 3, 5), Chunk(4, "stderr", b"f\ng\n"), Closed(5)])
    async for line in lines:
        assert line.text == "a"
        break
    batches = lines.batches()
    assert (await batches.__anext__()).texts == ["b", "c", "d"]
    assert (await lines.__anext__()).text == "e"
    with pytest.raises(GapError):
        await batches.__anext__()
    assert (await lines.__anext__()).text == "f"
    assert [(batch.texts, batch.stream, batch.seq) async for batch in lines.batches()] == [(["g"], "stderr", 4)]


async def test_loops_that_wait_at_once_lose_no_line() -> None:
    class Arriving:
        """Events that come when the test says so."""

        def __init__(self) -> None:
            self.events: asyncio.Queue[Event | None] = asyncio.Queue()

        async def next(self) -> Event | None:
            return await self.events.get()

    arriving: Any = Arriving()
    lines = Lines(arriving, None, 65536)
    found: list[str] = []

    async def take(count: int) -> None:
        async for line in lines:
            found.append(line.text)
            await asyncio.sleep(0)
            if (count := count - 1) == 0:
                return

    loops = [asyncio.ensure_future(take(count)) for count in (1, 9)]
    cancelled = asyncio.ensure_future(lines.__anext__())
    await asyncio.sleep(0)
    for n, text in enumerate((b"a\nb\nc\n", b"d\ne\n", b"f\ng\nh")):
        arriving.events.put_nowait(Chunk(n, "stdout", text))
    assert cancelled.cancel()
    for last in (Closed(4), None):
        arriving.events.put_nowait(last)
    await asyncio.gather(*loops)
    assert found == list("abcdefgh")


async def test_lines_are_equal_if_all_of_them_is() -> None:
    events: list[Event] = [Chunk(1, "stdout", b"a\nb\na"), Closed(2)]
    ones = [line async for line in lines_of(events)]
    others = [line async for line in lines_of(events)]
    assert ones == others
    assert len(set(ones + others)) == 3
    assert ones[0] != ones[2]
    assert repr(ones[1]) == "Line('b', Origin(stream='stdout', seq=1, is_continued=False))"


async def test_lines_cost_little_more_than_splitting() -> None:
    data = (b"x" * 79 + b"\n") * 800
    best = [10.0, 10.0, 10.0]
    for _ in range(5):
        began, count = time.process_time(), 0
        for _ in range(100):
            for _ in data.decode().split("\n"):
                count += 1
        best[0] = min(best[0], time.process_time() - began)
        began, count = time.process_time(), 0
        async for _ in lines_of(Chunk(n, "stdout", data) for n in range(1, 101)):
            count += 1
        best[1] = min(best[1], time.process_time() - began)
        assert count == 80_000
        began, count = time.process_time(), 0
        async for batch in lines_of(Chunk(n, "stdout", data) for n in range(1, 101)).batches():
            for _ in batch.texts:
                count += 1
        best[2] = min(best[2], time.process_time() - began)
        assert count == 80_000
    # It was 20 times as much.
    assert best[1] < 12 * best[0]
    assert best[2] < 4 * best[0]


@pytest.mark.parametrize("method", ["readexactly", "readline", "readuntil"])
async def test_the_time_to_read_grows_with_the_length_only(method: str) -> None:
    count, piece = 5_000, bytes(16_000)
    stream = reader([*(piece for _ in range(count)), b"\n"])
    began = time.process_time()
    if method == "readexactly":
        data = await stream.readexactly(count * len(piece) + 1)
    else:
        data = await getattr(stream, method)()
    assert len(data) == count * len(piece) + 1
    # Copying everything for each piece takes a minute and more.
    assert time.process_time() - began < 10
