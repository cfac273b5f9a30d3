"""The synchronous face, the shapes of asyncio.subprocess, the agent, the examples, and what is generated."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import agent_tools
import pytest
from harness import Server, within

import remex_client
from remex_client import Host, UsageError, asyncio_subprocess, sync
from remex_client._text import Cleaner, Truncator
from remex_client.agent import Agent, Limits

HERE = Path(__file__).resolve().parent.parent


def test_the_synchronous_face_does_the_same(server: Server, tmp_path: Path) -> None:
    with sync.connect(server.unix) as host:
        assert host.run(["echo", "hi"]).text == "hi\n"
        process = host.start("for n in 1 2 3; do echo $n; done; read -r x; echo got $x", stdin="pipe")
        lines = process.lines()
        assert [next(lines).text for _ in range(3)] == ["1", "2", "3"]
        process.stdin.write(b"it\n")
        process.stdin.close()
        assert [line.text for line in lines] == ["got it"]
        assert process.wait().ok
        assert process.stdout.readline() == b"1\n"
        assert [text for batch in process.lines().batches() for text in batch.texts] == ["1", "2", "3", "got it"]
        host.files.write(tmp_path / "file", b"content")
        with host.files.open(tmp_path / "file") as file:
            assert file.read() == b"content"
        with host.files.open(tmp_path / "file", "wb") as out:
            out.write(b"new")
        assert [entry.name for entry in host.files.iterdir(tmp_path)] == ["file"]
        assert isinstance(host.process(process.id).events(), sync.Events)
        with pytest.raises(FileNotFoundError):
            host.files.read(tmp_path / "missing")
        step = host.agent().exec("echo done")
        assert (step.output.text, step.state) == ("done\n", "ended")
    with pytest.raises(remex_client.SessionLostError):
        host.run(["true"])


def test_lines_of_much_output_come_once_however_loops_take_turns(server: Server) -> None:
    count = 300_000
    with sync.connect(server.websocket) as host:
        # More than the window, so the rest of it arrives only if what is taken is reported as consumed.
        lines = host.start(["seq", str(count)]).lines()
        found = [next(lines).text]
        turns = 0
        while len(found) < count:
            before, turns = len(found), turns + 1
            for line in lines:
                found.append(line.text)
                if len(found) >= before + 777 * turns:
                    break
            for batch in lines.batches():
                found += batch.texts
                break
        assert found == [str(n) for n in range(1, count + 1)]
        assert turns > 10
        assert [*lines, *lines.batches()] == []


def test_the_synchronous_face_serves_several_threads(server: Server) -> None:
    outcomes: dict[int, str] = {}
    with sync.connect(server.websocket) as host:

        def work(number: int) -> None:
            outcomes[number] = host.run(f"seq 1 2000 | tail -n 1; echo {number}").text

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert outcomes == {number: f"2000\n{number}\n" for number in range(8)}


async def test_the_shapes_of_asyncio_subprocess(host: Host) -> None:
    pipe = asyncio_subprocess.PIPE
    process = await asyncio_subprocess.create_subprocess_exec(host, "cat", stdin=pipe, stdout=pipe)
    before = process.returncode
    assert before is None
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"one\n")
    await process.stdin.drain()
    assert await process.stdout.readline() == b"one\n"
    assert await process.communicate(b"two\n") == (b"two\n", None)
    assert await process.wait() == 0
    assert process.returncode == 0

    both = await asyncio_subprocess.create_subprocess_shell(
        host, "echo out; echo err >&2; exit 3", stdout=pipe, stderr=asyncio_subprocess.STDOUT
    )
    assert await both.communicate() == (b"out\nerr\n", None)
    assert both.returncode == 3

    large = await asyncio_subprocess.create_subprocess_exec(host, "cat", stdin=pipe, stdout=pipe, stderr=pipe)
    stdout, stderr = await within(20, "megabytes", large.communicate(bytes(3_000_000)))
    assert (len(stdout or b""), stderr) == (3_000_000, b"")
    silent = await asyncio_subprocess.create_subprocess_shell(host, "head -c 3000000 /dev/zero; exit 2")
    assert await within(20, "the exit", silent.wait()) == 2

    sleeper = await asyncio_subprocess.create_subprocess_exec(host, "sleep", "1000", env={})
    sleeper.send_signal(signal.SIGTERM)
    assert await within(10, "the exit", sleeper.wait()) == -15
    killed = await asyncio_subprocess.create_subprocess_shell(host, "sleep 1000")
    killed.kill()
    assert await within(10, "the exit", killed.wait()) == -9


async def test_an_agent_gets_control_back(host: Host) -> None:
    agent = Agent(host, Limits(yield_min=0.01))
    step = await agent.exec("echo begun; read -r x; printf '\\033[1mgot %s\\033[0m\\n' $x; exit 5", yield_after=0.2)
    assert (step.state, step.output.text) == ("running", "begun\n")
    assert [listed.state for listed in agent.list()] == ["running"]
    step = await agent.write(step.handle, "it\n", yield_after=10)
    assert (step.state, step.output.text) == ("ended", "got it\n")
    assert step.exit is not None
    assert step.to_json()["exitCode"] == 5
    with pytest.raises(UsageError):
        await agent.write(step.handle, "more")
    with pytest.raises(UsageError):
        await agent.write(99)
    assert (await agent.output(step.handle, 1000)).text == "begun\ngot it\n"


async def test_an_agent_may_write_more_than_a_process_reads(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    async with Agent(host, Limits(yield_min=0.01)) as agent:
        step = await agent.exec("read -r x; echo got $x; exec sleep 1000", yield_after=0.01)
        step = await agent.write(step.handle, "it\n" + "x" * 8_000_000, yield_after=0.01)
        while "got it" not in step.output.text:
            step = await agent.write(step.handle, yield_after=10)
        await agent.kill(step.handle)
        assert (await agent.write(step.handle, yield_after=10)).state == "ended"
        running = await agent.exec(["sleep", "1000"], yield_after=0.01)
        with pytest.raises(UsageError):
            await agent.write(running.handle, yield_after=-1)
        with pytest.raises(TypeError):
            await agent.write(running.handle, 5)  # type: ignore[arg-type]
        pid = agent.process(running.handle).pid
    assert not (await host.run(f"kill -0 {pid}")).ok, "leaving the block ends what runs"
    gc.collect()
    await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text


async def test_an_agent_truncates_to_a_budget(host: Host) -> None:
    agent = Agent(host)
    step = await agent.exec("seq 1 100000", max_output_bytes=200)
    assert len(step.output.text.encode()) <= 200
    assert step.output.text.startswith("1\n2\n")
    assert step.output.text.endswith("99999\n100000\n")
    assert step.output.total_bytes == 588_895
    assert f"[… {step.output.omitted_bytes} bytes omitted …]" in step.output.text


async def test_an_agent_ends_processes(host: Host) -> None:
    agent = Agent(host, Limits(yield_min=0.01))
    interrupted = await agent.exec("trap 'exit 6' INT; echo ready; while :; do sleep 0.01; done", yield_after=0.5)
    await agent.interrupt(interrupted.handle)
    step = await agent.write(interrupted.handle, yield_after=10)
    assert step.exit is not None
    assert step.exit.exit_code == 6
    killed = await agent.exec(["sleep", "1000"], yield_after=0.01)
    await agent.kill(killed.handle)
    assert (await agent.write(killed.handle, yield_after=10)).state == "ended"
    await agent.close()


@pytest.mark.parametrize(
    ("output", "budget", "text"),
    [
        ("abc", 3, "abc"),
        ("grüße\n", 8, "grüße\n"),
        ("".join(f"line {n:03}\n" for n in range(1000)), 90,
         "line 000\nline 001\nline 002\n[… 8946 bytes omitted …]\nline 997\nline 998\nline 999\n"),
        ("x" * 1000, 70, "x" * 20 + "\n[… 960 bytes omitted …]\n" + "x" * 20),
        ("x" * 1000, 5, "[… 1000 bytes omitted …]"),
    ],
)  # fmt: skip
def test_truncation(output: str, budget: int, text: str) -> None:
    for size in (1, 7, 1000, 100_000):
        truncator = Truncator(budget)
        for at in range(0, len(output.encode()), size):
            truncator.push(output.encode()[at : at + size])
        assert truncator.finish().text == text


def test_a_gap_separates_the_beginning_from_the_end() -> None:
    truncator = Truncator(100)
    truncator.push(b"before\n")
    truncator.skip(None)
    truncator.push(b"after\n")
    assert truncator.finish().text == "before\n[… more than 0 bytes omitted …]\nafter\n"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (b"\x1b[1;31merror:\x1b[0m no space\n", b"error: no space\n"),
        (b"10%\r100%\nx\n", b"100%\nx\n"),
        (b"ab\x08c\n", b"ac\n"),
        (b"gone\x1b[2K\rnew\x1b[K\n", b"new\n"),
        (b"\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link\n", b"textlink\n"),
        (b"bell\x07 tab\t \xc3\xa9\n", b"bell tab\t \xc3\xa9\n"),
        (b"line\r\nnext", b"line\nnext"),
        (b"stray \x1b", b"stray "),
    ],
)
def test_control_sequences_are_removed_however_output_is_split(output: bytes, text: bytes) -> None:
    for size in (1, 2, 3, 100):
        cleaner = Cleaner()
        pieces = [cleaner.push(output[at : at + size]) for at in range(0, len(output), size)]
        assert b"".join(pieces) + cleaner.finish() == text


async def test_the_example_runs_a_scripted_model(server: Server, tmp_path: Path) -> None:
    async with remex_client.connect(server.unix) as host:
        tools = agent_tools.Tools(host, str(tmp_path))
        calls = [
            ("write_file", {"path": "count.sh", "text": "seq 1 $1 | paste -sd+ | bc\n"}),
            ("run_command", {"command": "sh count.sh 100 2>/dev/null || echo 5050"}),
            ("read_file", {"path": "count.sh"}),
            ("read_file", {"path": "missing"}),
        ]
        model = agent_tools.ScriptedModel([*calls, "the sum is 5050"])
        answer = await agent_tools.converse(model, tools, "What is the sum of 1 to 100?")
        assert answer == "the sum is 5050"
        results = [json.loads(message["content"]) for message in model.seen[-1] if message["role"] == "tool"]
        assert results[1]["output"] == "5050\n"
        assert results[2]["text"].startswith("seq 1")
        assert "missing" in results[3]["error"] or "No such file" in results[3]["error"]
        assert {schema["function"]["name"] for schema in tools.schemas()} >= {"run_command", "read_file", "write_file"}


@pytest.mark.parametrize("script", ["generate_models.py", "generate_sync.py"])
def test_generated_files_are_up_to_date(script: str) -> None:
    command = [sys.executable, str(HERE / "scripts" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FORK = """
import os, signal, sys
from remex_client import UsageError, sync

signal.alarm(20)
host = sync.connect(sys.argv[1])
assert host.run(["true"]).ok
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        host.run(["true"])
    except UsageError as error:
        print(error.hint, flush=True)
    with sync.connect(sys.argv[1]) as own:
        print(own.run(["echo", "child"]).text, end="", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(host.run(["echo", "parent"]).text, end="")
host.end()
"""


def test_a_forked_process_connects_anew(server: Server) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, server.unix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("connect again\nchild\nparent\n", 0), done.stderr


def test_a_callback_that_makes_a_call_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").touch()
    errors: list[UsageError] = []

    def work() -> None:
        with sync.connect(server.unix) as host:
            try:
                host.files.upload_tree(tmp_path / "source", tmp_path / "to", ignore=lambda path: host.run("true").ok)
            except UsageError as error:
                errors.append(error)

    # A thread, because a call that waits for itself cannot be interrupted.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert ["callback" in error.message for error in errors] == [True]
