"""Processes, over every transport."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import inspect
import json
import math
import os
import pwd
import random
import signal as signals
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness import ScriptedServer, Server, within

import remex_client
import remex_client.agent
from remex_client import Chunk, Exit, GapError, Host, Match, RefusedError, TimedOutError, UsageError
from remex_client._codec import path_from_wire


async def test_a_command_as_text_is_a_line_for_the_shell(host: Host) -> None:
    result = await host.run("echo $((6 * 7)); echo oops >&2; exit 3")
    assert (result.text, result.stderr, result.exit_code, result.ok) == ("42\n", b"oops\n", 3, False)
    assert result.exit.cause == "exit"
    assert result.exit.usage is not None


async def test_check_raises_with_what_the_command_said(host: Host) -> None:
    with pytest.raises(remex_client.CommandFailedError, match=r"exit code 3.*: oops") as failure:
        await host.run("echo oops >&2; exit 3", check=True)
    assert failure.value.result.exit_code == 3


async def test_words_that_are_not_utf8_arrive_as_they_are(host: Host) -> None:
    result = await host.run(["printf", "%s", b"caf\xe9"])
    assert result.stdout == b"caf\xe9"


async def test_a_missing_program_is_refused_with_its_kind(host: Host) -> None:
    with pytest.raises(RefusedError) as refusal:
        await host.run(["/nowhere/at/all"])
    assert refusal.value.kind == "programNotFound"


async def test_an_empty_command_is_a_usage_error(host: Host) -> None:
    with pytest.raises(UsageError):
        await host.start([])


async def test_a_command_runs_as_another_user_where_the_server_is_root(host: Host) -> None:
    if os.geteuid() != 0:
        with pytest.raises(UsageError, match="does not support it"):
            await host.run(["id"], user="daemon")
        return
    home = pwd.getpwnam("daemon").pw_dir
    users: list[str | int] = ["daemon", pwd.getpwnam("daemon").pw_uid]
    for user in users:
        result = await host.run("id -un; pwd; echo $HOME", user=user)
        assert result.text == f"daemon\n{home}\n{home}\n"
    result = await host.run("pwd", user="daemon", cwd="/")
    assert result.text == "/\n"
    with pytest.raises(RefusedError, match="no user `no-such-user`"):
        await host.start(["id"], user="no-such-user")
    odd: Any = True
    with pytest.raises(UsageError, match="as `user`"):
        await host.start(["id"], user=odd)


async def test_the_environment_is_what_was_asked_for(host: Host) -> None:
    result = await host.run(["/usr/bin/env"], env={"A": "b c"}, inherit_env="none", cwd="/")
    assert result.text == "A=b c\n"


async def test_a_terminal_is_driven_by_prompts(host: Host) -> None:
    shell = await host.start(["/bin/sh"], tty=(24, 80), env={"PS1": "ready> "})
    prompt = await within(10, "the prompt", shell.wait_for(r"ready> $"))
    assert isinstance(prompt, Match)
    await shell.stdin.write(b"echo $((6 * 7)); stty size\n")
    answer = await within(10, "the answer", shell.wait_for(r"\r\n42\r\n24 80", after=prompt))
    assert isinstance(answer, Match)
    await shell.resize(50, 132)
    await shell.stdin.write(b"stty size; exit 5\n")
    assert isinstance(await within(10, "the size", shell.wait_for("50 132", after=answer)), Match)
    assert (await within(10, "the exit", shell.wait())).exit_code == 5


async def test_a_command_may_run_on_a_terminal(host: Host) -> None:
    result = await within(10, "the result", host.run("test -t 0 && echo $TERM", tty=(24, 80)))
    assert (result.terminal, result.text, result.stdout) == (b"xterm-256color\r\n", "xterm-256color\r\n", b"")


@pytest.mark.parametrize("input", ["one\ntwo\n", "one", "", None])
async def test_the_input_of_a_terminal_ends(host: Host, input: str | None) -> None:
    result = await within(10, "the end", host.run("wc -c", input=input, tty=(24, 80)))
    # The terminal shows what is typed.
    assert result.text == (input or "").replace("\n", "\r\n") + f"{len(input or '')}\r\n"


async def test_a_terminal_of_another_handle_gets_its_end_of_file(host: Host) -> None:
    first = await host.start("stty -echo; echo ready; cat", tty=(24, 80))
    await within(10, "the start", first.wait_for("ready"))
    second = await host.process(first.id)
    await second.stdin.write("text\n")
    await within(10, "the end of the input", second.stdin.close())
    assert (await within(10, "the exit", first.wait())).ok


@pytest.mark.parametrize("input", [5, 1.5, object(), {"a": b"b"}])
async def test_an_input_of_the_wrong_type_is_refused_before_anything_is_started(host: Host, input: Any) -> None:
    with pytest.raises(TypeError, match="the input cannot be"):
        await within(10, "the refusal", host.run(["cat"], input=input))
    assert await host.processes() == []


async def test_a_writer_that_fails_fails_the_run(host: Host) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"first\n"
        raise LookupError("no more")

    with pytest.raises(LookupError):
        await within(10, "the failure", host.run(["cat"], input=broken()))
    pieces: Any = [b"first\n", 5]
    with pytest.raises(TypeError, match="`int`: give bytes or text"):
        await within(10, "the failure", host.run(["cat"], input=pieces))


async def test_the_input_may_be_text_and_pieces_of_it(host: Host) -> None:
    async def pieces() -> AsyncIterator[str | bytes]:
        yield "é"
        yield bytes(300_000)

    assert (await within(10, "text", host.run(["cat"], input="é\n"))).text == "é\n"
    assert (await within(10, "a list", host.run(["cat"], input=[b"a", bytearray(b"b"), "c"]))).text == "abc"
    assert (await within(10, "pieces", host.run(["wc", "-c"], input=pieces()))).text == "300002\n"


async def test_an_input_that_no_one_reads_does_not_hold_up_the_end(host: Host) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(65536)

    assert (await within(10, "the exit", host.run("exit 3", input=endless()))).exit_code == 3


async def test_callbacks_get_output_as_it_arrives(host: Host) -> None:
    seen: list[tuple[str, bytes]] = []

    async def on_stderr(data: bytes) -> None:
        seen.append(("stderr", data))

    command = "echo out; echo err >&2"
    result = await host.run(command, on_stdout=lambda data: seen.append(("stdout", data)), on_stderr=on_stderr)
    assert sorted(seen) == [("stderr", b"err\n"), ("stdout", b"out\n")]
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")

    def broken(data: bytes) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await within(10, "the failure", host.run("echo out; exec sleep 1000", on_stdout=broken))


async def test_a_run_has_its_output_in_memory_once(host: Host) -> None:
    size = 30_000_000
    tracemalloc.start()
    try:
        result = await within(60, "the output", host.run(f"head -c {size} /dev/zero", retain_bytes=4 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(result.stdout) == size
    assert peak < 1.5 * size


async def test_output_may_be_merged_and_bounded(host: Host) -> None:
    merged = await host.run("echo out; sleep 0.05; echo err >&2; sleep 0.05; echo out", merge=True)
    assert (merged.stdout, merged.stderr) == (b"out\nerr\nout\n", b"")
    bounded = await host.run("seq 1 100000", max_output_bytes=100)
    assert len(bounded.stdout) <= 100
    assert bounded.stdout.startswith(b"1\n2\n")
    assert bounded.stdout.endswith(b"\n100000\n")
    assert f"[… {bounded.omitted_bytes} bytes omitted …]" in bounded.text
    nothing = await host.run("seq 1 100", max_output_bytes=0)
    assert (nothing.stdout, nothing.omitted_bytes) == (b"", 292)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": -1},
        {"timeout": 0},
        {"timeout": math.nan},
        {"timeout": math.inf},
        {"idle_timeout": -0.5},
        {"timeout_grace": -1},
        {"linger": -1},
        {"retain_time": -1},
        {"stdin": "foo"},
        {"stdin": True},
    ],
)
async def test_a_bad_value_is_refused(host: Host, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        await host.run(["true"], **options)
    assert await host.processes() == []


async def test_a_time_of_the_wrong_type_is_refused(host: Host) -> None:
    wrong: Any = "1"
    with pytest.raises(TypeError):
        await host.run(["true"], timeout=wrong)


async def test_a_bad_time_of_a_call_is_refused(host: Host) -> None:
    process = await host.start(["sleep", "1000"])
    for call in (
        process.wait_for("x", timeout=-1),
        process.wait_for_silence(math.nan),
        process.terminate(-1),
        host.http.get("http://127.0.0.1:1", timeout=-1),
    ):
        with pytest.raises(UsageError):
            await call
    assert process.exit is None


async def test_signals_have_names_and_numbers(host: Host) -> None:
    for signal in (signals.SIGUSR1, signals.SIGUSR1.value, "USR1", "SIGUSR1"):
        process = await host.start("trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done")
        await within(10, "the start", process.wait_for("ready"))
        await process.signal(signal)
        assert (await within(10, "the exit", process.wait())).exit_code == 7
    with pytest.raises(UsageError):
        await process.signal(12345)


async def test_invalid_text_is_a_usage_error_and_nothing_is_sent(host: Host) -> None:
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
    assert (await within(20, "the exit", process.wait())).exit_code == 4


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


@pytest.mark.parametrize("limit", ["retain_events = 20", "retain_bytes = '16KiB'", "session_retain_bytes = '64KiB'"])
async def test_a_server_that_keeps_little_sends_everything(limit: str, tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text(f"[limits]\n{limit}\n")
    server = Server("--config", str(config))
    try:
        for url in [server.unix, server.websocket]:
            async with remex_client.connect(url) as host:
                lines = "i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); sleep 0.001; done"
                done = await within(20, "the output", host.run(f"seq 100000; {lines}"))
                assert len(done.stdout.splitlines()) == 100_100
    finally:
        server.stop()


async def test_a_gap_raises_once_and_the_stream_continues(host: Host) -> None:
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

    expected = [hashlib.sha256(random.Random(seed).randbytes(2_000_000)).hexdigest() for seed in range(6)]
    assert await within(60, "six processes", asyncio.gather(*map(one, range(6)))) == expected


async def test_a_process_of_another_session_is_followed_by_reference(server: Server) -> None:
    async with (
        remex_client.connect(server.unix, session="other") as other,
        remex_client.connect(server.websocket) as host,
    ):
        process = await other.start("echo hello; read -r x; echo got $x", stdin="pipe", name="p")
        reference = host.process_ref("other", process.id)
        await reference.write(b"it\n")
        await reference.close_stdin()
        assert (await within(10, "a match", reference.wait_for(r"got (\w+)"))).groups == (b"it",)
        assert [line.text async for line in reference.lines()] == ["hello", "got it"]
        assert await within(10, "a line", reference.stdout.readline()) == b"hello\n"
        assert await within(10, "the rest", reference.stdout.read()) == b"got it\n"
        assert await within(10, "nothing", reference.stderr.read()) == b""
        assert b"".join([chunk.data async for chunk in reference.chunks("stdout")]) == b"hello\ngot it\n"
        events = [event async for event in reference.events()]
        assert b"".join(event.data for event in events if isinstance(event, Chunk)) == b"hello\ngot it\n"
        assert [type(event).__name__ for event in events][-2:] == ["Exited", "Closed"]
        assert (await reference.wait()).ok
        assert any(session.name == "other" for session in await host.sessions())
        await other.end()


async def test_another_session_is_observed(server: Server) -> None:
    async with (
        remex_client.connect(server.unix, session="seen") as seen,
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
        assert isinstance(events[1], remex_client.Exited)
        assert events[1].exit == Exit(2, None, "exit", events[1].exit.usage)
        await seen.end()


def note(method: str, process: remex_client.Process, seq: int, **more: Any) -> str:
    return json.dumps({"method": method, "params": {"processId": process.id, "seq": seq, **more}})


def output(process: remex_client.Process, seq: int, data: bytes) -> str:
    return note("process/output", process, seq, stream="stdout", chunk=base64.b64encode(data).decode())


async def test_reading_everything_keeps_what_came_before_a_gap() -> None:
    async with ScriptedServer(lambda method, params: {}) as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"])
        server.send(output(process, 1, b"before "))
        server.send(note("process/gap", process, 2, fromSeq=2, toSeq=2, bytes=7))
        server.send(output(process, 3, b"after"))
        server.send(note("process/exited", process, 4, exitCode=0))
        server.send(note("process/closed", process, 5))
        with pytest.raises(GapError):
            await within(10, "the gap", process.stdout.read())
        assert await within(10, "the output", process.stdout.read()) == b"before after"
        assert process.stdout.at_eof()


async def test_reading_everything_may_be_cancelled() -> None:
    async with ScriptedServer(lambda method, params: {}) as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"])
        stdout = process.stdout
        server.send(output(process, 1, b"before "))
        await within(10, "the first output", process.wait_for("before"))
        read = asyncio.create_task(stdout.read())
        # It takes what is there, and waits for more.
        await asyncio.sleep(0)
        read.cancel()
        await asyncio.wait([read], timeout=10)
        assert read.cancelled()
        server.send(output(process, 2, b"after"))
        server.send(note("process/exited", process, 3, exitCode=0))
        server.send(note("process/closed", process, 4))
        assert await within(10, "the output", stdout.read()) == b"before after"


async def test_closing_the_input_can_be_tried_again() -> None:
    is_slow = True

    def answer(method: str, params: dict[str, Any]) -> Any:
        return None if method == "process/closeStdin" and is_slow else {}

    async with ScriptedServer(answer) as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], stdin="pipe")
        close = asyncio.create_task(process.stdin.close())
        await server.received_message("the request", lambda sent: sent["method"] == "process/closeStdin")
        close.cancel()
        await asyncio.wait([close], timeout=10)
        assert close.cancelled()
        assert process.stdin.is_open
        is_slow = False
        await within(10, "the second attempt", process.stdin.close())
        assert not process.stdin.is_open
        assert [message["method"] for message in server.received].count("process/closeStdin") == 2


async def test_a_start_that_times_out_leaves_no_process() -> None:
    def answer(method: str, params: dict[str, Any]) -> Any:
        return None if method == "process/start" else {"chunks": [], "nextSeq": 1}

    async with (
        ScriptedServer(answer) as server,
        remex_client.connect(server.url, request_timeout=0.1) as host,
    ):
        # That of a name may be a process of someone else.
        with pytest.raises(TimedOutError):
            await host.start(["x"], name="theirs")
        with pytest.raises(TimedOutError):
            await host.start(["x"])
        ended = await server.received_message("the end", lambda sent: sent["method"] == "process/terminate")
        starts = [message for message in server.received if message["method"] == "process/start"]
        assert ended["params"]["processId"] == starts[1]["params"]["processId"]


async def test_a_match_has_what_came_before_it_and_its_groups(host: Host) -> None:
    async with await host.start("echo starting; echo listening on port 8080, pid 17; exec sleep 1000") as process:
        match = await within(10, "the match", process.wait_for(r"port (?P<port>\d+)(,)?( never)?"))
        assert match.before == b"starting\nlistening on "
        assert match.groups == (b"8080", b",", None)
        assert (match.group(), match.group(1), match.group("port")) == (b"port 8080,", b"8080", b"8080")
        again = await within(10, "the next match", process.wait_for(r"pid", after=match))
        assert again.before == b" "


async def test_a_terminal_has_a_default_size(host: Host) -> None:
    assert (await within(10, "the size", host.run("stty size", tty=True))).text == "24 80\r\n"
    assert (await within(10, "the output", host.run("test -t 0 || echo none", tty=False))).text == "none\n"
    wrong: Any = (0, 80)
    with pytest.raises(UsageError):
        await host.run("true", tty=wrong)


async def test_an_input_can_be_a_pipe(host: Host) -> None:
    process = await host.start(["cat"], stdin=remex_client.PIPE)
    await process.stdin.write("text")
    await process.stdin.close()
    assert (await within(10, "the output", process.communicate())).text == "text"
    none = await host.start(["cat"], stdin=remex_client.DEVNULL)
    assert not none.stdin.is_open
    assert (await within(10, "the output", none.communicate())).ok
    # Without a word about it, there is none either.
    assert (await within(10, "the exit", host.run(["cat"]))).ok


def test_the_options_that_are_passed_on_are_those_of_start() -> None:
    parameters = set(inspect.signature(Host.start).parameters)
    assert set(remex_client.StartOptions.__annotations__) == parameters - {"self", "command", "name"}
    for method in (Host.run, Host.attach_or_start, remex_client.agent.Agent.exec):
        assert inspect.signature(method).parameters["options"].annotation == "Unpack[StartOptions]"


async def test_a_directory_may_be_relative_or_at_home(host: Host) -> None:
    info = host.welcome["environmentInfo"]
    assert info is not None
    home = path_from_wire(info["userHomeDir"])
    assert (await host.run(["pwd", "-P"], cwd=".")).text == (await host.run(["pwd", "-P"])).text
    assert (await host.run(["pwd", "-P"], cwd="~")).text.strip() == os.path.realpath(home)
    assert (await host.run(["pwd", "-P"], cwd="..")).text.strip() == str(Path(path_from_wire(info["cwd"])).parent)


async def test_a_process_is_attached_to_or_started(server: Server) -> None:
    async def attached() -> tuple[int | None, remex_client.Process]:
        process = await host.attach_or_start("echo $$; read -r x", name="once", stdin=remex_client.PIPE)
        line = await within(10, "the line", process.lines().__anext__())
        return int(line.text), process

    async with remex_client.connect(server.unix, session="attached") as host:
        outcomes = await asyncio.gather(*(attached() for _ in range(8)))
        assert len({pid for pid, _ in outcomes}) == 1
        await outcomes[0][1].stdin.write("x\n")
        assert (await within(10, "the exit", outcomes[1][1].wait())).ok
    async with remex_client.connect(server.websocket, session="attached") as host:
        assert (await attached())[0] == outcomes[0][0], "it is still there after its end"
        await host.end()
