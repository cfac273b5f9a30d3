"""Nothing is lost and nothing happens twice on a network that fails, from a seed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from pathlib import Path
from typing import Any

import pytest
from harness import Server, budgets, proxied, within

import remex_client

TRANSPORTS = ["unix", "websocket"]
OPTIONS: dict[str, Any] = {"connect_retry": 30.0, "detach_ttl": 60.0}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_large_output_survives_disconnects(server: Server, transport: str, seed: int) -> None:
    script = f"import sys,random;sys.stdout.buffer.write(random.Random({seed}).randbytes(8_000_000))"
    async with proxied(getattr(server, transport), budgets(seed, 750_000, 2_250_000)) as (url, _):
        host = await remex_client.connect(url, **OPTIONS)
        process = await host.start(["python3", "-c", script], overflow="hold")
        got = hashlib.sha256()
        seqs = []
        async for chunk in process.chunks():
            got.update(chunk.data)
            seqs.append(chunk.seq)
        assert got.hexdigest() == digest(random.Random(seed).randbytes(8_000_000))
        assert seqs == list(range(1, len(seqs) + 1))
        assert (await process.wait()).ok
        assert host.disconnects > 2
        await host.end()


@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_large_input_survives_disconnects(server: Server, transport: str, seed: int) -> None:
    data = random.Random(seed).randbytes(6_000_000)
    async with proxied(getattr(server, transport), budgets(seed, 525_000, 1_800_000)) as (url, _):
        host = await remex_client.connect(url, **OPTIONS)
        result = await within(60, "sha256sum", host.run(["sha256sum"], input=data, overflow="hold"))
        assert result.text.split()[0] == digest(data)
        assert host.disconnects > 2
        await host.end()


@pytest.mark.parametrize("seed", [6, 7])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_each_start_and_each_write_happens_once(
    server: Server, transport: str, seed: int, tmp_path: Path
) -> None:
    started, written = tmp_path / "started", tmp_path / "written"
    async with proxied(getattr(server, transport), budgets(seed, 10_000, 40_000)) as (url, _):
        host = await remex_client.connect(url, **OPTIONS)
        writer = await host.start(f"cat > {written}", stdin="pipe", overflow="hold")

        async def one(number: int) -> int:
            await writer.stdin.write(b"%d\n" % number)
            return (await host.run(f"echo {number} >> {started}; exit {number % 7}", overflow="hold")).exit_code

        codes = await within(60, "all starts", asyncio.gather(*map(one, range(100))))
        await writer.stdin.close()
        assert (await writer.wait()).ok
        assert codes == [number % 7 for number in range(100)]
        assert sorted(map(int, started.read_text().split())) == list(range(100))
        assert sorted(map(int, written.read_text().split())) == list(range(100))
        assert host.disconnects > 2
        await host.end()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_files_and_trees_survive_disconnects(server: Server, transport: str, tmp_path: Path) -> None:
    data = random.Random(8).randbytes(3_000_000)
    (tmp_path / "large").write_bytes(data)
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    for number in range(60):
        (tree / "deep" / str(number)).write_bytes(os.urandom(number * 37))
        os.utime(tree / "deep" / str(number), (1_600_000_000 + number, 1_600_000_000 + number))
    (tree / "deep" / "link").symlink_to("0")
    async with proxied(getattr(server, transport), budgets(8, 525_000, 1_800_000)) as (url, _):
        host = await remex_client.connect(url, **OPTIONS)
        assert await host.files.upload(tmp_path / "large", tmp_path / "up") == len(data)
        assert await host.files.hash(tmp_path / "up") == "sha256:" + digest(data)
        assert await host.files.download(tmp_path / "up", tmp_path / "down") == len(data)
        assert digest((tmp_path / "down").read_bytes()) == digest(data)
        done = await host.files.upload_tree(tree, tmp_path / "there")
        assert (done.files, done.links) == (60, 1)
        await host.files.download_tree(tmp_path / "there", tmp_path / "back")
        assert host.disconnects > 2
        await host.end()
    for copy in ("there", "back"):
        names = sorted(path.name for path in (tmp_path / copy / "deep").iterdir())
        assert names == sorted([*map(str, range(60)), "link"]), "nothing temporary is left"
        for number in range(60):
            there, here = tmp_path / copy / "deep" / str(number), tree / "deep" / str(number)
            assert there.read_bytes() == here.read_bytes()
            assert int(there.stat().st_mtime) == int(here.stat().st_mtime)


async def _texts(lines: remex_client.Lines) -> list[str]:
    return [line.text async for line in lines]


async def test_durable_processes_survive_a_restart_of_the_server() -> None:
    """The state directory keeps processes; a client sees a reconnect."""
    server = Server(state=True)
    try:
        async with remex_client.connect(server.unix, **OPTIONS) as host:
            process = await host.start("for n in $(seq 1 500); do echo $n; sleep 0.002; done", durable=True)
            lines = process.lines()
            assert (await lines.__anext__()).text == "1"
            server.restart()
            rest = await within(30, "the rest", _texts(lines))
            assert rest == [str(number) for number in range(2, 501)]
            assert host.disconnects >= 1
    finally:
        server.stop()
