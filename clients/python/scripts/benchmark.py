"""Measures the client for `remex-bench`: `benchmark.py URL RUNS BYTES` prints the figures as JSON."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time

import remex_client

WARM_UP = 50
MEBIBYTE = 1 << 20


async def measure(url: str, runs: int, size: int) -> dict[str, float]:
    """Returns the median of a run in microseconds, and the rate of output in MiB per second."""
    async with remex_client.connect(url) as host:
        times = []
        for _ in range(WARM_UP + runs):
            began = time.perf_counter()
            result = await host.run(["/bin/true"])
            times.append(time.perf_counter() - began)
            result.check()
        began, received = time.perf_counter(), 0
        process = await host.start(["head", "-c", str(size), "/dev/zero"])
        async for chunk in process.chunks():
            received += len(chunk.data)
        seconds = time.perf_counter() - began
        assert received == size, f"{received} bytes came"
    return {"run": statistics.median(times[WARM_UP:]) * 1e6, "rate": size / MEBIBYTE / seconds}


def main(url: str, runs: str, size: str) -> None:
    """Prints the figures."""
    print(json.dumps(asyncio.run(measure(url, int(runs), int(size)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
