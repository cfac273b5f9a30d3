"""Measures throughput and latency of the client: `python scripts/benchmark.py path/to/remex`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time

import remex_client

SIZE = 256 << 20


async def measure(url: str, directory: str) -> None:
    """Prints what one transport achieves."""
    async with remex_client.connect(url) as host:
        times = []
        for _ in range(200):
            began = time.perf_counter()
            await host.run(["true"])
            times.append(time.perf_counter() - began)
        times.sort()
        print(f"{url}\n  run(['true']): median {times[100] * 1e3:.2f} ms, best {times[0] * 1e3:.2f} ms")

        began, cpu, size = time.perf_counter(), time.process_time(), 0
        process = await host.start(["head", "-c", str(SIZE), "/dev/zero"])
        async for chunk in process.chunks():
            size += len(chunk.data)
        assert size == SIZE
        report("output", size, began, cpu)

        began, cpu = time.perf_counter(), time.process_time()
        async with host.files.open(f"{directory}/file", "wb") as writer:
            for _ in range(64):
                await writer.write(bytes(1 << 20))
        report("upload", 64 << 20, began, cpu)

        began, cpu = time.perf_counter(), time.process_time()
        async with host.files.open(f"{directory}/file") as reader:
            async for _block in reader:
                pass
        report("download", 64 << 20, began, cpu)


def report(what: str, size: int, began: float, cpu: float) -> None:
    """Prints a rate, and what it would be if the processor time of the client were the only limit."""
    wall, used, mebibytes = time.perf_counter() - began, time.process_time() - cpu, size / (1 << 20)
    print(f"  {what}: {mebibytes / wall:.0f} MiB/s; {mebibytes / used:.0f} MiB per second of processor time here")


def main(program: str) -> None:
    """Measures a server on a unix socket and on a WebSocket."""
    with tempfile.TemporaryDirectory() as directory:
        listeners = ["--listen", f"unix://{directory}/s", "--listen", "ws://127.0.0.1:0"]
        command = [program, "serve", *listeners]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            try:
                for url in [server.stdout.readline().strip() for _ in range(2)]:
                    asyncio.run(measure(url, directory))
            finally:
                server.terminate()


if __name__ == "__main__":
    main(sys.argv[1])
