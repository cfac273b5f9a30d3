"""The streams of a process as bytes and lines, without a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest

from remex_client import Chunk
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
