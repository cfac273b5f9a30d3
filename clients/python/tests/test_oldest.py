"""The client against a server of the oldest dialect, which has no sessions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import ROOT, remex, within

import remex_client

PROGRAM = [str(ROOT / "scripts" / "oldest" / "server"), remex()]


@pytest.fixture(params=["stdio", "unix", "ws"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | list[str]]:
    """A server of the oldest dialect on each transport."""
    if request.param == "stdio":
        yield [*PROGRAM, "stdio"]
        return
    where = f"unix:{tmp_path}/s" if request.param == "unix" else "ws"
    with subprocess.Popen([*PROGRAM, where], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


async def test_processes_start_write_read_and_end(target: str | list[str]) -> None:
    async with remex_client.connect(target) as host:
        assert host.session_id == ""
        done = await within(20, "a run", host.run("echo out; echo err >&2; exit 3"))
        assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 3)
        much = await within(20, "much output", host.run("seq 1 100000"))
        assert much.stdout == b"".join(b"%d\n" % number for number in range(1, 100_001))

        process = await host.start("read line; echo got $line; exec sleep 1000", stdin="pipe")
        await within(20, "a write", process.write(b"this\n"))
        async for line in process.lines():
            assert line.text == "got this"
            break
        await process.kill()
        assert (await within(20, "the exit", process.wait())).exit_code == 137
        with pytest.raises(remex_client.RefusedError, match="does not implement `process/list`"):
            await host.processes()


async def test_files_are_read_and_written_as_far_as_the_dialect_can(target: str | list[str], tmp_path: Path) -> None:
    async with remex_client.connect(target) as host:
        directory = tmp_path / "made here"
        await host.files.mkdir(str(directory))
        await host.files.write(directory.as_uri() + "/file", b"content")
        assert (directory / "file").read_bytes() == b"content"
        assert await host.files.read(directory / "file") == b"content"
        assert (await host.files.metadata(directory)).is_directory
        assert [entry.name for entry in await host.files.listdir(directory)] == ["file"]
        with pytest.raises(remex_client.RefusedError, match="does not implement `fs/open`"):
            async with host.files.open(directory / "file"):
                pass


async def test_what_needs_a_session_fails_and_says_why(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    server = subprocess.Popen([*PROGRAM, address], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    with pytest.raises(remex_client.UsageError, match="the oldest dialect has no sessions"):
        await remex_client.connect(url, session=remex_client.Resume("builds"))
    async with remex_client.connect(url) as host:
        process = await host.start(["sleep", "1000"])
        server.kill()
        with pytest.raises(remex_client.SessionLostError, match="the oldest dialect has no sessions") as lost:
            await within(20, "the loss", process.wait())
        assert lost.value.reason == "notResumable"
    server.communicate()
