"""Lines without await, without a server."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from remex_client import Chunk, Closed, Event, Gap, GapError, sync
from remex_client._lines import Lines
from remex_client._portal import Portal


class Source:
    """What lines are made of; the first of the events comes alone, and the others have arrived then."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = list(events)
        self.is_interrupted = False

    async def next(self) -> Event | None:
        if self.is_interrupted:
            self.is_interrupted = False
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.get_running_loop().create_future()
        return self._take_one()

    def _take_one(self) -> Event | None:
        return self.events.pop(0) if self.events else None


def lines_of(source: Source, max_bytes: int = 65536) -> sync.Lines:
    events: Any = source
    return sync.Lines(Portal.shared(), Lines(events, None, max_bytes))


EVENTS = (
    Chunk(1, "stdout", b"a\nb\r\nc"),
    Chunk(2, "stdout", b"d\ne"),
    Gap(3, 4, 5),
    Chunk(5, "stderr", b"f\ng\n"),
    Closed(6),
)


def test_lines_continue_after_a_gap_and_after_a_break() -> None:
    lines = lines_of(Source(EVENTS))
    for line in lines:
        assert (line.text, line.stream, line.seq, line.is_continued) == ("a", "stdout", 1, False)
        break
    assert next(lines).text == "b"
    rest = []
    with pytest.raises(GapError):
        for line in lines:
            rest.append((line.text, line.seq))
    assert rest == [("cd", 2), ("e", 4)]
    assert [(line.stream, line.text) for line in lines] == [("stderr", "f"), ("stderr", "g")]
    with pytest.raises(StopIteration):
        next(lines)


def test_loops_over_the_same_lines_share_them() -> None:
    lines = lines_of(Source(EVENTS[:2]))
    first, second, batches = iter(lines), iter(lines), lines.batches()
    assert [next(first).text, next(second).text] == ["a", "b"]
    batch = next(batches)
    assert (batch.texts, batch.stream, batch.seq, batch.is_continued) == (["cd"], "stdout", 2, False)
    assert [list(first), list(second), list(batches)] == [[], [], []]


def test_threads_that_share_lines_lose_none() -> None:
    count = 20_000
    seen: list[int] = []
    lines = lines_of(Source([*(Chunk(number, "stdout", b"%d\n" % number) for number in range(1, count + 1))]))

    def loop() -> None:
        seen.extend(int(line.text) for line in lines)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=loop, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a loop over lines does not end"
    finally:
        sys.setswitchinterval(interval)
    assert sorted(seen) == list(range(1, count + 1))


def test_long_lines_come_in_pieces() -> None:
    lines = lines_of(Source([Chunk(1, "stdout", "ab\ncdéfg\nh".encode()), Closed(2)]), 4)
    assert [(batch.texts, batch.is_continued) for batch in lines.batches()] == [
        *((["ab"], False), (["cdé"], True), (["fg"], False), (["h"], False))
    ]


def test_an_interrupt_loses_no_line() -> None:
    source = Source(EVENTS[:2])
    lines = lines_of(source)
    found = [next(lines).text]
    source.events += [*EVENTS[3:]]
    loop = iter(lines)
    found += [next(loop).text, next(loop).text]
    source.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        found += [line.text for line in loop]
    assert found == ["a", "b", "cd"]
    assert [line.text for line in lines] == ["f", "g", "e"]


def test_kept_lines_stay_what_they_are() -> None:
    lines = list(lines_of(Source([Chunk(1, "stdout", b"a\nb\n"), Chunk(2, "stderr", b"c\n"), Closed(3)])))
    assert [(line.text, line.stream, line.seq) for line in lines] == [
        *(("a", "stdout", 1), ("b", "stdout", 1), ("c", "stderr", 2))
    ]
    assert len(set(lines)) == 3
