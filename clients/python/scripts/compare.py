"""Compares the ways to take output in one run: `compare.py TARGET [MEBIBYTES] [LINE]` prints rates and their ratios.

Each way is measured several times in turn, and its best counts, so a machine that does other things meanwhile disturbs
all of them alike.
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


async def chunks(target: str, command: str) -> int:
    """Takes chunks."""
    async with remex_client.connect(target) as host:
        return sum([len(chunk.data) async for chunk in (await host.start(command)).chunks()])


async def lines(target: str, command: str) -> int:
    """Takes lines."""
    size = 0
    async with remex_client.connect(target) as host:
        async for line in (await host.start(command)).lines():
            size += len(line.text) + 1
    return size


async def run(target: str, command: str) -> int:
    """Takes everything at once."""
    async with remex_client.connect(target) as host:
        return len((await host.run(command)).stdout)


def sync_chunks(target: str, command: str) -> int:
    """Takes chunks without await."""
    with sync.connect(target) as host:
        return sum(len(chunk.data) for chunk in host.start(command).chunks())


def sync_lines(target: str, command: str) -> int:
    """Takes lines without await."""
    with sync.connect(target) as host:
        return sum(len(line.text) + 1 for line in host.start(command).lines())


def main(target: str, mebibytes: str = "100", line: str = "80") -> None:
    """Prints the figures."""
    size = int(mebibytes) * MEBIBYTE
    command = f"yes {'x' * (int(line) - 1)} | head -c {size}"
    ways: dict[str, Callable[[], int]] = {
        "chunks": lambda: asyncio.run(chunks(target, command)),
        "sync chunks": lambda: sync_chunks(target, command),
        "lines": lambda: asyncio.run(lines(target, command)),
        "sync lines": lambda: sync_lines(target, command),
    }
    best = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.perf_counter()
            assert way() in (size, size + 1), "not everything came"
            best[name] = max(best[name], size / MEBIBYTE / (time.perf_counter() - began))
    for name, rate in best.items():
        print(f"{name:12} {rate:6.0f} MiB/s  {rate / best['chunks']:.2f} of chunks")
    tracemalloc.start()
    length = asyncio.run(run(target, command))
    print(f"run          {tracemalloc.get_traced_memory()[1] / length:.2f} times its output in memory")


if __name__ == "__main__":
    main(*sys.argv[1:])
