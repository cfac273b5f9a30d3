"""Compares the ways to take output with what they have to reach: `compare.py TARGET [MEBIBYTES] [LINE]`.

It prints rates, and exits with 1 if a goal is missed. The goals are those of a server that was built for release, on a
machine that does nothing else. Each way is measured several times in turn, and its best counts, so a disturbance that
passes meets all of them alike. The time begins when the process has started: connections do not count.
"""

from __future__ import annotations

import asyncio
import sys
import time
import tracemalloc
from collections.abc import Callable

import remex_client
from remex_client import sync

MEBIBYTE = 1 << 20
ROUNDS = 3

#: The least rate of a way without await, as a part of the rate of the same way with it.
SYNC_GOAL = 0.5

#: The least rate of lines in MiB per second.
LINES_GOAL = 200.0

#: The output of the run whose memory is measured, and the most memory that it may take as a multiple of that: a second
#: copy would be 2.
RUN_BYTES = 500_000_000
RUN_GOAL = 1.25

#: Takes all output; returns its size and the seconds that it took.
Way = Callable[[str, str], tuple[int, float]]


def chunks(target: str, command: str) -> tuple[int, float]:
    """Takes chunks."""

    async def take() -> tuple[int, float]:
        async with remex_client.connect(target) as host:
            process = await host.start(command)
            began = time.perf_counter()
            size = sum([len(chunk.data) async for chunk in process.chunks()])
            return size, time.perf_counter() - began

    return asyncio.run(take())


def lines(target: str, command: str) -> tuple[int, float]:
    """Takes lines."""

    async def take() -> tuple[int, float]:
        size = 0
        async with remex_client.connect(target) as host:
            process = await host.start(command)
            began = time.perf_counter()
            async for line in process.lines():
                size += len(line.text) + 1
            return size, time.perf_counter() - began

    return asyncio.run(take())


def line_batches(target: str, command: str) -> tuple[int, float]:
    """Takes lines in batches."""

    async def take() -> tuple[int, float]:
        size = 0
        async with remex_client.connect(target) as host:
            process = await host.start(command)
            began = time.perf_counter()
            async for batch in process.lines().batches():
                for text in batch.texts:
                    size += len(text) + 1
            return size, time.perf_counter() - began

    return asyncio.run(take())


def sync_chunks(target: str, command: str) -> tuple[int, float]:
    """Takes chunks without await."""
    with sync.connect(target) as host:
        process = host.start(command)
        began = time.perf_counter()
        size = sum(len(chunk.data) for chunk in process.chunks())
        return size, time.perf_counter() - began


def sync_lines(target: str, command: str) -> tuple[int, float]:
    """Takes lines without await."""
    with sync.connect(target) as host:
        process = host.start(command)
        began = time.perf_counter()
        size = sum(len(line.text) + 1 for line in process.lines())
        return size, time.perf_counter() - began


def sync_line_batches(target: str, command: str) -> tuple[int, float]:
    """Takes lines in batches without await."""
    size = 0
    with sync.connect(target) as host:
        process = host.start(command)
        began = time.perf_counter()
        for batch in process.lines().batches():
            for text in batch.texts:
                size += len(text) + 1
        return size, time.perf_counter() - began


WAYS: dict[str, Way] = {
    "chunks": chunks,
    "sync chunks": sync_chunks,
    "lines": lines,
    "sync lines": sync_lines,
    "line batches": line_batches,
    "sync line batches": sync_line_batches,
}


def rates(target: str, size: int, line: int) -> dict[str, float]:
    """Returns the best rate of each way in MiB per second."""
    best = dict.fromkeys(WAYS, 0.0)
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            taken, seconds = way(target, output(size, line))
            # The last line has no end, and counts as if it had one.
            assert taken in (size, size + 1), f"{name}: {taken} of {size} bytes came"
            best[name] = max(best[name], size / MEBIBYTE / seconds)
    return best


def memory_of_run(target: str, size: int, line: int) -> float:
    """Returns how much memory a `run` takes at most, as a multiple of its output."""

    async def run() -> int:
        async with remex_client.connect(target) as host:
            return len((await host.run(output(size, line))).stdout)

    tracemalloc.start()
    length = asyncio.run(run())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert length == size, f"{length} of {size} bytes came"
    return peak / length


def output(size: int, line: int) -> str:
    """Returns a command that prints so many bytes in lines of this length."""
    return f"yes {'x' * (line - 1)} | head -c {size}"


def main(target: str, mebibytes: str = "500", line: str = "80") -> int:
    """Prints the figures; returns 1 if one misses its goal."""
    best = rates(target, int(mebibytes) * MEBIBYTE, int(line))
    memory = memory_of_run(target, RUN_BYTES, int(line))
    for name, rate in best.items():
        print(f"{name:17} {rate:6.0f} MiB/s")
    judged = [
        (ratio >= SYNC_GOAL, f"sync {name}: {ratio:.2f} of {name}, of at least {SYNC_GOAL}")
        for name in ("chunks", "lines", "line batches")
        for ratio in [best[f"sync {name}"] / best[name]]
    ]
    judged += [
        (best[name] >= LINES_GOAL, f"{name}: {best[name]:.0f} of at least {LINES_GOAL:.0f} MiB/s")
        for name in ("lines", "line batches")
    ]
    judged.append((memory <= RUN_GOAL, f"run: {memory:.2f} times its output in memory, of at most {RUN_GOAL}"))
    for is_reached, figure in judged:
        print(f"{'reached' if is_reached else 'MISSED '} {figure}")
    return 0 if all(is_reached for is_reached, _ in judged) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
