"""Processes, over every transport."""

from __future__ import annotations

import asyncio
import gc
import hashlib

import pytest
from harness import Server, within

import remex_client
from remex_client import Chunk, Exit, GapError, Host, Match, RefusedError, TimedOutError, UsageError


async def test_a_command_as_text_is_a_line_for_the_shell(host: Host) -> None:
    result = await host.run("echo $((6 * 7)); echo oops >&2; exit 3")
    assert (result.text, result.stderr, result.code, result.ok) == ("42\n", b"oops\n", 3, False)
    assert result.exit.cause == "exit"
    assert result.exit.usage is not None


async def test_check_raises_with_what_the_command_said(host: Host) -> None:
    with pytest.raises(remex_client.CommandFailedError, match=r"exit code 3.*: oops") as failure:
        await host.run("echo oops >&2; exit 3", check=True)
    assert failure.value.result.code == 3


async def test_words_that_are_not_utf8_arrive_as_they_are(host: Host) -> None:
    result = await host.run(["printf", "%s", b"caf\xe9"])
    assert result.stdout == b"caf\xe9"


async def test_a_program_that_is_missing_is_refused_with_its_kind(host: Host) -> None:
    with pytest.raises(RefusedError) as refusal:
        await host.run(["/nowhere/at/all"])
    assert refusal.value.kind == "programNotFound"


async def test_an_empty_command_is_a_usage_error(host: Host) -> None:
    with pytest.raises(UsageError):
        await host.start([])


async def test_the_environment_is_what_was_asked_for(host: Host) -> None:
    result = await host.run(["/usr/bin/env"], env={"A": "b c"}, inherit_env="none", cwd="/")
    assert result.text == "A=b c\n"


async def test_a_terminal_is_driven_by_prompts(host: Host) -> None:
    shell = await host.start(["/bin/sh"], tty=(24, 80), env={"PS1": "ready> "})
    prompt = await within(10, "the prompt", shell.wait_for(r"ready> $"))
    assert isinstance(prompt, Match)
    await shell.stdin.write(b"echo $((6 * 7)); stty size\n")
    answer = await within(10, "the answer", shell.wait_for(r"\r\n42\r\n24 80", after=prompt.seq))
    assert isinstance(answer, Match)
    await shell.resize(50, 132)
    await shell.stdin.write(b"stty size; exit 5\n")
    assert isinstance(await within(10, "the size", shell.wait_for("50 132", after=answer.seq)), Match)
    assert (await within(10, "the exit", shell.wait())).code == 5


async def test_a_command_may_run_on_a_terminal(host: Host) -> None:
    result = await within(10, "the result", host.run("test -t 0 && echo $TERM", tty=(24, 80)))
    assert (result.terminal, result.text, result.stdout) == (b"xterm-256color\r\n", "xterm-256color\r\n", b"")


async def test_what_is_no_text_is_a_usage_error_and_nothing_is_sent(host: Host) -> None:
    with pytest.raises(UsageError):
        await host.run(["true"], env={"A": "\udcff"})
    assert (await within(10, "another command", host.run(["true"]))).ok


async def test_a_wait_that_takes_too_long_times_out(host: Host) -> None:
    async with await host.start(["sleep", "1000"]) as process:
        with pytest.raises(TimedOutError):
            await process.wait_for("never", timeout=0.05)
    assert (await within(10, "the exit", process.wait())).signal == "SIGKILL"


async def test_an_invalid_expression_is_a_usage_error(host: Host) -> None:
    process = await host.start(["true"])
    with pytest.raises(UsageError):
        await process.wait_for("(")


async def test_streams_are_read_like_those_of_asyncio(host: Host) -> None:
    process = await host.start("echo one; echo two; printf three; echo err >&2")
    assert await process.stdout.readline() == b"one\n"
    assert await process.stdout.readexactly(2) == b"tw"
    assert await process.stdout.read() == b"o\nthree"
    assert process.stdout.at_eof()
    assert [line async for line in process.stderr] == [b"err\n"]


async def test_communicate_is_not_held_up_by_a_reader_that_no_one_reads(host: Host) -> None:
    process = await host.start("echo first; head -c 2000000 /dev/zero", retain_bytes=4 << 20)
    assert await process.stdout.readline() == b"first\n"
    result = await within(20, "the output", process.communicate())
    assert len(result.stdout) == 2_000_006


async def test_lines_that_are_too_long_come_in_pieces_of_whole_characters(host: Host) -> None:
    process = await host.start("printf 'aéé\\nx'")
    lines = [(line.text, line.is_continued) async for line in process.lines(max_bytes=4)]
    assert lines == [("aé", True), ("é", False), ("x", False)]


async def test_input_waits_while_the_process_does_not_read(host: Host) -> None:
    process = await host.start("read -r line; echo $line; exec cat > /dev/null", stdin="pipe")
    write = asyncio.create_task(process.stdin.write(b"go\n" + bytes(8 << 20)))
    match = await within(10, "the first line", process.wait_for("go"))
    assert isinstance(match, Match)
    await within(20, "the rest of the input", write)
    await process.stdin.close()
    assert (await within(10, "the exit", process.wait())).ok
    with pytest.raises(RefusedError) as refusal:
        await process.stdin.write(b"more")
    assert refusal.value.kind == "stdinClosed"


async def test_a_consumer_that_stalls_holds_up_its_own_process_only(host: Host) -> None:
    stalled = await host.start("yes")
    chunks = stalled.chunks()
    first = await within(10, "the first chunk", chunks.__anext__())
    result = await within(30, "another process", host.run("head -c 3000000 /dev/zero"))
    assert len(result.stdout) == 3_000_000
    queue = stalled._queue
    assert queue._queued_bytes <= 512 << 10, "what waits for the consumer is bounded"
    # It goes on where it was.
    second = await within(10, "the next chunk", chunks.__anext__())
    assert isinstance(first, Chunk)
    assert second.seq == first.seq + 1
    await stalled.kill()


async def test_a_process_without_a_handle_is_not_held_up(host: Host) -> None:
    directory = (await host.run("mktemp -d")).text.strip()
    await host.start(f"head -c 5000000 /dev/zero; : > {directory}/done")
    gc.collect()
    await within(20, "the end", host.run(f"until test -e {directory}/done; do sleep 0.01; done; rm -r {directory}"))


async def test_a_wait_discards_output(host: Host) -> None:
    process = await host.start("head -c 5000000 /dev/zero; exit 4")
    assert (await within(20, "the exit", process.wait())).code == 4


async def test_polling_is_consuming(host: Host) -> None:
    process = await host.start("head -c 3000000 /dev/zero", retain_bytes=65536)
    after, size = 0, 0
    while True:
        events = await within(10, "events", process.read(after, wait=5))
        size += sum(len(event.data) for event in events if isinstance(event, Chunk))
        after = max([after, *(event.seq for event in events)])
        if any(isinstance(event, remex_client.Closed) for event in events):
            break
    assert size == 3_000_000


async def test_a_gap_is_an_error_once_and_then_the_stream_goes_on(host: Host) -> None:
    process = await host.start("head -c 3000000 /dev/zero; echo end", retain_bytes=65536, overflow="evict")
    while (info := await process.info()) is not None and info.state == "running":
        await asyncio.sleep(0.01)
    lost, got, chunks = 0, b"", process.chunks()
    while True:
        try:
            got += (await chunks.__anext__()).data
        except GapError as gap:
            assert gap.bytes is not None
            lost += gap.bytes
        except StopAsyncIteration:
            break
    assert got.endswith(b"end\n")
    assert lost > 0
    assert len(got) + lost == 3_000_004


async def test_a_timeout_kills_the_whole_tree(host: Host) -> None:
    result = await host.run("sleep 1000 & wait", timeout=0.1)
    assert (result.exit.cause, result.exit.signal) == ("timeout", "SIGKILL")


async def test_cancelling_a_run_kills_the_process(host: Host) -> None:
    name = "to-be-cancelled"
    run = asyncio.create_task(host.run(["sleep", "1000"], name=name))
    await within(10, "the start", _listed(host, name))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (await within(10, "the exit", (await host.process(name)).wait())).cause == "terminated"


async def _listed(host: Host, name: str) -> None:
    while not any(info.id == name and info.state == "running" for info in await host.processes()):
        await asyncio.sleep(0.01)


async def test_labels_and_names_are_listed(host: Host) -> None:
    await host.start(["sleep", "1000"], name="sleeper", labels={"job": "nap"})
    info = next(info for info in await host.processes() if info.id == "sleeper")
    assert (info.labels, info.argv, info.state, info.tty) == ({"job": "nap"}, ("sleep", "1000"), "running", False)


async def test_many_large_outputs_at_once_are_exact(host: Host) -> None:
    script = "import sys,random;r=random.Random({0});d=r.randbytes(2_000_000);sys.stdout.buffer.write(d)"

    async def one(seed: int) -> str:
        result = await host.run(["python3", "-c", script.format(seed)])
        return hashlib.sha256(result.stdout).hexdigest()

    import random

    expected = [hashlib.sha256(random.Random(seed).randbytes(2_000_000)).hexdigest() for seed in range(6)]
    assert await within(60, "six processes", asyncio.gather(*map(one, range(6)))) == expected


async def test_a_process_of_another_session_is_followed_by_reference(server: Server) -> None:
    async with (
        remex_client.connect(server.unix, session_name="other") as other,
        remex_client.connect(server.websocket) as host,
    ):
        process = await other.start("echo hello; read -r x; echo got $x", stdin="pipe", name="p")
        reference = host.process_ref("other", process.id)
        await reference.write(b"it\n")
        await reference.close_stdin()
        events = [event async for event in reference.events()]
        assert b"".join(event.data for event in events if isinstance(event, Chunk)) == b"hello\ngot it\n"
        assert [type(event).__name__ for event in events][-2:] == ["Exited", "Closed"]
        assert (await reference.wait()).ok
        assert any(session.name == "other" for session in await host.sessions())
        await other.end()


async def test_another_session_is_observed(server: Server) -> None:
    async with (
        remex_client.connect(server.unix, session_name="seen") as seen,
        remex_client.connect(server.websocket) as host,
    ):
        process = await seen.start("echo hello; exit 2")
        events = []
        async for process_id, event in await host.observe("seen"):
            assert process_id == process.id
            events.append(event)
            if isinstance(event, remex_client.Closed):
                break
        assert [getattr(event, "data", None) for event in events] == [b"hello\n", None, None]
        assert events[1].exit == Exit(2, None, "exit", events[1].exit.usage)
        await seen.end()
