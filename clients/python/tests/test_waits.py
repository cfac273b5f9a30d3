"""Waiting for output that matches."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from harness import within

import remex_client
from remex_client import Host, Match, TimedOutError


async def test_a_wait_continues_after_the_last_match(host: Host) -> None:
    async with await host.start("printf 'tick tick\\nport 80\\n'; exec sleep 1000") as process:
        first = await within(10, "the first", process.wait_for("tick"))
        assert isinstance(first, Match)
        assert (first.stream, first.rest) == ("stdout", b" tick\nport 80\n")
        second = await within(10, "the second", process.wait_for("tick", after=first))
        assert isinstance(second, Match)
        with pytest.raises(TimedOutError):
            await process.wait_for("tick", after=second, timeout=0.05)
        port = await within(10, "the port", process.wait_for(r"port \d+", after=second))
        assert isinstance(port, Match)
        assert port.text == "port 80"


async def test_a_wait_ends_with_the_output_and_not_with_the_exit(host: Host, tmp_path: Path) -> None:
    silent = await host.start("exit 3")
    with pytest.raises(remex_client.NoMatchError) as ended:
        await within(10, "the end", silent.wait_for("never"))
    assert ended.value.exit.exit_code == 3
    assert isinstance(ended.value, EOFError)
    os.mkfifo(tmp_path / "fifo")
    parent = await host.start("{ read -r x < fifo; echo got $x; } & exit 4", cwd=tmp_path)
    assert (await within(10, "the exit", parent.wait())).exit_code == 4
    late = asyncio.create_task(parent.wait_for("got it"))
    await within(10, "the write", host.run("echo it > fifo", cwd=tmp_path))
    assert isinstance(await within(10, "what a background process prints", late), Match)
