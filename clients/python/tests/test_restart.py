"""Restarting processes: whose events are whose, and what is repeated after a disconnect."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from pathlib import Path
from typing import Any

import pytest
from harness import ScriptedServer, Server, within

import remex_client
from remex_client import Chunk, Closed, Exited, Host, RefusedError, StdinClosedError, UsageError, sync

#: Prints its pid, and then what it reads.
ECHO = 'echo $$; while read -r line; do echo "$line"; done'


async def test_a_handle_becomes_that_of_the_new_process(host: Host, tmp_path: Path) -> None:
    async with await host.start(ECHO, cwd=tmp_path, env={"A": "b"}, stdin="pipe", restartable=True) as process:
        before, events, stdin = process.pid, process.events(), process.stdin
        await within(10, "the first pid", process.wait_for(f"^{before}$"))
        await process.stdin.write("one\n")
        await within(10, "the echo", process.wait_for("one"))
        after = await within(30, "the restart", process.restart(grace=0))
        assert after == process.pid != before
        old = [event async for event in events]
        assert b"".join(event.data for event in old if isinstance(event, Chunk)) == f"{before}\none\n".encode()
        assert [type(event) for event in old[-2:]] == [Exited, Closed]
        with pytest.raises(StdinClosedError):
            await stdin.write("lost\n")

        assert process.exit is None
        await process.stdin.write("two\n")
        await process.stdin.close()
        lines = [line.text async for line in process.lines()]
        assert lines == [str(after), "two"]
        assert (await within(10, "the exit", process.wait())).ok
        info = await process.info()
        assert info is not None
        assert (info.pid, info.cwd) == (after, str(tmp_path))
        third = await within(30, "the restart of an ended process", process.restart())
        assert third not in (before, after)
        waiting = asyncio.create_task(process.wait())
    assert (await within(10, "the end of the block", waiting)).signal == "SIGKILL"


async def test_a_command_is_run_again_when_it_ends(host: Host, tmp_path: Path) -> None:
    command = "echo >> runs; n=$(wc -l < runs); echo run $n; [ $n = 3 ]"
    done = host.run(command, cwd=tmp_path, restart={"policy": "onFailure", "maxRestarts": 5})
    result = await within(30, "the run that succeeds", done)
    assert (result.text, result.exit_code) == ("run 1\nrun 2\nrun 3\n", 0)
    assert result.stderr.decode().count("restarting in") == 2
    always = host.run("echo again; exit 0", restart={"policy": "always", "maxRestarts": 1})
    assert (await within(30, "the last run", always)).text == "again\nagain\n"
    odd: Any = {"policy": "sometimes"}
    with pytest.raises(RefusedError, match="sometimes"):
        await host.start(["true"], restart=odd)
    async with ScriptedServer(lambda method, params: {}) as old, remex_client.connect(old.url) as without:
        with pytest.raises(UsageError, match="run a command again"):
            await without.start(["true"], restart={"policy": "always"})


async def test_only_what_was_started_for_it_is_restarted(host: Host) -> None:
    process = await host.start(["cat"], stdin="pipe")
    with pytest.raises(RefusedError, match="was not kept") as refusal:
        await process.restart()
    assert refusal.value.kind == "notSupported"
    with pytest.raises(UsageError, match="grace"):
        await process.restart(grace=-1)
    result = await within(10, "its output", process.communicate(b"it goes on"))
    assert result.text == "it goes on"
    with pytest.raises(RefusedError) as refusal:
        await host.process_ref(host.session_id, "missing").restart()
    assert refusal.value.kind == "unknownProcess"


async def test_a_failed_restart_leaves_the_old_process_with_its_output(host: Host, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    process = await host.start("echo it; exec sleep 1000", cwd=work, restartable=True)
    await within(10, "its output", process.wait_for("it"))
    work.rmdir()
    with pytest.raises(RefusedError, match="was ended, but not started again"):
        await process.restart(grace=0)
    assert (await within(10, "its end", process.wait())).signal == "SIGKILL"
    assert await process.stdout.read() == b"it\n"
    work.mkdir()
    await process.restart(grace=0)
    await within(10, "its output", process.wait_for("it"))


async def detached(host: Host, session: str) -> None:
    while any(found.attached for found in await host.sessions() if found.name == session):
        pass


async def test_a_reference_restarts_a_process_of_any_session(server: Server) -> None:
    first = await remex_client.connect(server.unix, session="restarts")
    process = await first.start("echo $$; exec sleep 1000", name="job", restartable=True)
    async with remex_client.connect(server.websocket) as other:
        reference = other.process_ref("restarts", "job")
        with pytest.raises(RefusedError, match="another client is attached"):
            await reference.restart()
        await first.close()
        await within(30, "the server to notice that", detached(other, "restarts"))
        pid = await within(30, "the restart", reference.restart())
        assert pid != process.pid
        found = await within(10, "its pid", reference.wait_for(r"\d+"))
        assert found.text == str(pid)
    async with remex_client.connect(server.unix, session="restarts") as second:
        handle = await second.process("job")
        own = second.process_ref("restarts", "job")
        pid = await within(30, "the restart", own.restart(0))
        assert (await within(10, "the end of the old one", handle.wait())).signal == "SIGKILL"
        again = await second.process("job")
        assert (await within(10, "the new pid", again.wait_for(r"\d+"))).text == str(pid)
        await second.end()


async def test_a_handle_on_an_old_process_restarts_the_new_one(host: Host) -> None:
    first = await host.start(ECHO, stdin="pipe", restartable=True)
    second = await host.process(first.id)
    await within(30, "the first restart", first.restart(grace=0))
    assert (await within(10, "the end of the old process", second.wait())).signal == "SIGKILL"
    pid = await within(30, "the second restart", second.restart(grace=0))
    assert (await within(10, "the end of the process between", first.wait())).signal == "SIGKILL"
    assert (await within(10, "the new pid", second.wait_for(r"\d+"))).text == str(pid)
    await host.process_ref(host.session_id, first.id).restart(grace=0)
    pid = await within(30, "the third restart", second.restart(grace=0))
    assert (await within(10, "the new pid", second.wait_for(r"\d+"))).text == str(pid)


#: Its pid, and then more than the server sends ahead of a reader.
NUMBERS = "echo $$; seq 1 100000; exec sleep 1000"


async def printed(host: Host, id: str) -> None:
    """Waits until the process with this id has printed all numbers, without reading them."""
    reference = host.process_ref(host.session_id, id)
    while (info := await reference.info()) is None or info.retained_bytes < 588_895 + len(f"{info.pid}\n"):
        await asyncio.sleep(0.01)


async def test_each_of_three_processes_has_its_own_output(host: Host) -> None:
    process = await host.start(NUMBERS, name="thrice", restartable=True)
    pids, events = [process.pid], [process.events()]
    for _ in range(2):
        await within(30, "all numbers", printed(host, process.id))
        pids.append(await within(30, "the restart", process.restart(0)))
        events.append(process.events())
    await within(30, "all numbers", printed(host, process.id))
    await process.kill()
    for pid, its_events in zip(pids, events, strict=True):
        got = [event async for event in its_events]
        text = b"".join(event.data for event in got if isinstance(event, Chunk))
        assert (text.split(b"\n", 1)[0], len(text)) == (str(pid).encode(), 588_895 + len(str(pid)) + 1)
        assert [type(event) for event in got[-2:]] == [Exited, Closed]


async def test_a_handle_gets_nothing_of_a_process_before_a_restart_that_nobody_followed(host: Host) -> None:
    await host.start(NUMBERS, name="unfollowed", restartable=True)
    gc.collect()
    await within(30, "all numbers", printed(host, "unfollowed"))
    reference = host.process_ref(host.session_id, "unfollowed")
    between = await within(30, "the restart", reference.restart(0))
    pid = await within(30, "the restart", reference.restart(0))
    assert pid != between
    new = await host.process("unfollowed")
    await within(30, "all numbers", printed(host, "unfollowed"))
    await new.kill()
    output = await within(30, "its output", new.communicate())
    assert output.stdout.split(b"\n", 1)[0] == str(pid).encode()
    assert (await new.wait()).signal == "SIGKILL"


async def test_what_was_consumed_of_the_old_process_is_not_reported_for_the_new_one(server: Server) -> None:
    async with remex_client.connect(server.unix) as host:
        session = host._session
        session.report_consumed("p", 9)
        session.report_consumed("other", 5)
        session.replace_queue("p", None)
        assert [json.loads(note)["params"]["processId"] for note in session.take_notes()] == ["other"]


async def test_an_observer_gets_the_new_process_after_the_old_one(server: Server) -> None:
    async with (
        remex_client.connect(server.unix, session="watched") as host,
        remex_client.connect(server.websocket) as other,
    ):
        observed = await other.observe("watched")
        process = await host.start("echo it; exec sleep 1000", name="p", restartable=True)
        events = [await within(10, "its output", observed.__anext__())]
        await within(30, "the restart", process.restart(grace=0))
        events += [await within(10, "the next event", observed.__anext__()) for _ in range(3)]
        assert [type(event) for _, event in events] == [Chunk, Exited, Closed, Chunk]
        await host.end()


def test_the_synchronous_face_restarts(server: Server) -> None:
    with sync.connect(server.unix) as host, host.start(ECHO, stdin="pipe", restartable=True) as process:
        before = process.pid
        after = process.restart(grace=0)
        assert after == process.pid != before
        process.stdin.close()
        assert [line.text for line in process.lines()] == [str(after)]
        assert host.process_ref(host.session_id, process.id).restart() not in (before, after)


class Restarts:
    """A server whose process `p` printed `old`, and which answers a restart when the test says so."""

    def __init__(self) -> None:
        self.log = ["old"]
        self.server = ScriptedServer(self.answer)

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        if method == "process/start":
            return {"pid": 1}
        if method == "process/restart":
            return None
        if method == "process/read":
            after = params["afterSeq"]
            chunks = [{"seq": seq, **chunk(text)} for seq, text in enumerate(self.log, 1) if seq > after]
            return {"chunks": chunks, "nextSeq": len(self.log) + 1, "exited": False, "closed": False}
        return {}

    def output(self, seq: int, text: str) -> None:
        self.server.send(
            json.dumps({"method": "process/output", "params": {"processId": "p", "seq": seq, **chunk(text)}})
        )

    async def asked(self, number: int) -> dict[str, Any]:
        """Waits for the restart to be asked for so many times, and returns the last request."""

        def all_of_them() -> list[dict[str, Any]]:
            return [message for message in self.server.received if message.get("method") == "process/restart"]

        await self.server.received_message(f"restart {number}", lambda _: len(all_of_them()) >= number)
        return all_of_them()[-1]

    async def disconnect(self) -> None:
        connections = self.server.connections
        self.server.disconnect()
        await self.server.connected(connections + 1)


def chunk(text: str) -> dict[str, str]:
    return {"stream": "stdout", "chunk": base64.b64encode(text.encode()).decode()}


async def next_text(chunks: remex_client.Chunks) -> str:
    return (await within(10, "output", chunks.__anext__())).data.decode()


async def test_a_restart_is_repeated_and_its_events_are_not_mixed() -> None:
    restarts = Restarts()
    async with restarts.server as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], name="p")
        old = process.chunks()
        restarts.output(1, "old")
        assert await next_text(old) == "old"
        restarting = asyncio.create_task(process.restart())
        first = await restarts.asked(1)
        await restarts.disconnect()
        # The new process runs before the repeated request is answered, and has got further than the old one.
        repeated = await restarts.asked(2)
        assert repeated["params"] == first["params"]
        restarts.log = ["n1", "n2"]
        for seq, text in enumerate(restarts.log, 1):
            restarts.output(seq, text)
        server.send(json.dumps({"id": repeated["id"], "result": {"processId": "p", "pid": 2, "replayed": True}}))
        restarts.log.append("n3")
        restarts.output(3, "n3")
        assert await within(10, "the restart", restarting) == process.pid == 2
        new = process.chunks()
        assert [await next_text(new) for _ in range(3)] == ["n1", "n2", "n3"]
        with pytest.raises(RefusedError, match="restarted before all events of the old one") as loss:
            await next_text(old)
        assert loss.value.kind == "unknownProcess"


async def test_after_a_refused_restart_missed_output_is_read() -> None:
    restarts = Restarts()
    async with restarts.server as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], name="p")
        chunks = process.chunks()
        restarts.output(1, "old")
        restarting = asyncio.create_task(process.restart())
        await restarts.asked(1)
        await restarts.disconnect()
        repeated = await restarts.asked(2)
        restarts.log.append("more")
        restarts.output(2, "more")
        refusal = {"code": -32600, "message": "not now", "data": {"kind": "sessionAttached"}}
        server.send(json.dumps({"id": repeated["id"], "error": refusal}))
        with pytest.raises(RefusedError, match="not now"):
            await within(10, "the refusal", restarting)
        assert [await next_text(chunks) for _ in range(2)] == ["old", "more"]
        assert process.pid == 1


async def test_a_cancelled_restart_is_carried_out() -> None:
    restarts = Restarts()
    async with restarts.server as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], name="p")
        restarting = asyncio.create_task(process.restart())
        request = await restarts.asked(1)
        restarting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await restarting
        assert not [message for message in server.received if message.get("method") == "request/cancel"]
        restarts.log = ["new"]
        server.send(json.dumps({"id": request["id"], "result": {"processId": "p", "pid": 2, "replayed": False}}))
        restarts.output(1, "new")
        await within(10, "an answer behind that", host.call("environment/status"))
        assert process.pid == 2
        assert await next_text(process.chunks()) == "new"
