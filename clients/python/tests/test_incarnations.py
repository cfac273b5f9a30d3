"""Processes that were restarted while a client was away: it takes none for the one before."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from harness import ScriptedServer, Server, proxied, within
from test_restart import detached

import remex_client
from remex_client import Host, Process, RefusedError, RemexError

OLD, NEW = 41, 42


def chunk(text: str) -> dict[str, str]:
    return {"stream": "stdout", "chunk": base64.b64encode(text.encode()).decode()}


def named(incarnation: int | None) -> dict[str, int]:
    return {} if incarnation is None else {"incarnation": incarnation}


class Restartable:
    """A server with a process `p`, which printed `old` and which somebody else may restart."""

    def __init__(self) -> None:
        self.incarnation = OLD
        self.log = ["old"]
        #: Whether reads get no answer until `answer_reads`.
        self.holds_reads = False
        #: Whether restarts get no answer.
        self.holds_restarts = False
        self.server = ScriptedServer(self.answer)

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        if (method == "process/read" and self.holds_reads) or (method == "process/restart" and self.holds_restarts):
            return None
        if method == "process/start":
            return {"pid": 1, "incarnation": OLD}
        if params.get("incarnation") not in (None, self.incarnation):
            data = {"kind": "unknownProcess", "restarted": True}
            return {"error": {"code": -32600, "message": "process `p` was restarted since", "data": data}}
        return self.result(method, params)

    def result(self, method: str, params: dict[str, Any]) -> Any:
        if method == "process/read":
            after = params["afterSeq"]
            chunks = [{"seq": seq, **chunk(text)} for seq, text in enumerate(self.log, 1) if seq > after]
            state = {"exited": False, "closed": False, "incarnation": self.incarnation}
            return {"chunks": chunks, "nextSeq": len(self.log) + 1, **state}
        if method == "process/restart":
            return {"pid": 2, "incarnation": params.get("incarnation", OLD) + 1, "replayed": False}
        if method == "process/list":
            entry = {"processId": "p", "sessionId": "s", "argv": ["x"], "cwd": "/", "state": "running"}
            return {"processes": [{**entry, "incarnation": self.incarnation}]}
        if method == "process/snapshot":
            omitted = {"omittedBytes": 0, "running": True, "exitCode": None}
            return {"stdout": "", "stderr": "", "terminal": "", **omitted}
        return {"status": "accepted", "exitCode": 0}

    def restart(self, *log: str) -> None:
        self.incarnation, self.log = NEW, list(log)

    def output(self, seq: int, text: str, of: int | None = None) -> None:
        """Sends output, which names the process `of` if that can be restarted."""
        params = {"processId": "p", **named(of), "seq": seq, **chunk(text)}
        self.server.send(json.dumps({"method": "process/output", "params": params}))

    def end(self, seq: int, code: int, of: int | None = None) -> None:
        """Sends the exit with this number, and the close."""
        for kind, params in (("exited", {"seq": seq, "exitCode": code}), ("closed", {"seq": seq + 1})):
            self.server.send(
                json.dumps({"method": f"process/{kind}", "params": {"processId": "p", **named(of), **params}})
            )

    def sent(self, method: str) -> list[dict[str, Any]]:
        """Returns the params of all requests of this kind."""
        return [message["params"] for message in self.server.received if message.get("method") == method]

    async def disconnect(self) -> None:
        connections = self.server.connections
        self.server.disconnect()
        await self.server.connected(connections + 1)

    async def answer_reads(self, number: int) -> None:
        """Answers the reads so far, once there are so many."""

        def reads() -> list[dict[str, Any]]:
            return [message for message in self.server.received if message.get("method") == "process/read"]

        await self.server.received_message(f"read {number}", lambda _: len(reads()) >= number)
        self.holds_reads = False
        read = reads()[-1]
        answer = self.answer("process/read", read["params"])
        answer = answer if "error" in answer else {"result": answer}
        self.server.send(json.dumps({"id": read["id"], **answer}))


async def following(restartable: Restartable, host: Host) -> tuple[Process, remex_client.Chunks]:
    """Starts `p`, and takes its output so far."""
    process = await host.start(["x"], name="p", stdin="pipe")
    chunks = process.chunks()
    restartable.output(1, "old")
    assert await next_text(chunks) == "old"
    return process, chunks


async def next_text(chunks: remex_client.Chunks) -> str:
    return (await within(10, "output", chunks.__anext__())).data.decode()


async def is_restarted(what: str, awaitable: Awaitable[object]) -> None:
    with pytest.raises(RemexError) as error:
        await within(10, what, awaitable)
    assert error.value.is_restarted, error.value
    assert isinstance(error.value, RefusedError)
    assert error.value.kind == "unknownProcess"


async def test_nothing_of_the_process_after_a_restart_is_taken_for_output_of_the_one_before() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, chunks = await following(p, host)
        waiting = asyncio.create_task(process.wait())
        await within(10, "an answer", host.call("environment/status"))
        p.holds_reads = True
        await p.disconnect()
        p.restart("new", "more")
        # The next event by its number.
        p.output(2, "more")
        await within(10, "an answer behind that", host.call("environment/status"))
        assert chunks._take_arrived() == []
        await p.answer_reads(1)
        await is_restarted("the end of the output", chunks.__anext__())
        await is_restarted("the end of the wait", waiting)
        await is_restarted("a look at the exit", process.wait())

        # A new handle is on the new process, with all its output; the old one stays what it was.
        new = await within(10, "a handle", host.process("p"))
        assert (process.incarnation, new.incarnation) == (OLD, NEW)
        fresh = new.chunks()
        assert [await next_text(fresh) for _ in range(2)] == ["new", "more"]
        late = process.chunks()
        with pytest.raises(remex_client.GapError):
            await next_text(late)
        await is_restarted("the rest of the output of the old handle", late.__anext__())
        assert await process.info() is None
        assert await new.info() is not None


async def test_what_is_streamed_waits_for_the_answer_that_it_is_the_same_process() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        _, chunks = await following(p, host)
        p.holds_reads = True
        await p.disconnect()
        p.log.append("more")
        p.output(2, "more")
        await within(10, "an answer behind that", host.call("environment/status"))
        assert chunks._take_arrived() == []
        # A read that was interrupted says nothing.
        await p.disconnect()
        p.output(2, "more")
        await within(10, "an answer behind that", host.call("environment/status"))
        assert chunks._take_arrived() == []
        await p.answer_reads(2)
        assert await next_text(chunks) == "more"
        # From here on, it does not wait any more.
        p.output(3, "last")
        assert await next_text(chunks) == "last"


async def test_a_start_that_is_repeated_may_find_its_process_restarted() -> None:
    p = Restartable()
    p.server = ScriptedServer(lambda method, params: None if method == "process/start" else p.answer(method, params))
    async with p.server as server, remex_client.connect(server.url) as host:
        starting = asyncio.create_task(host.start(["x"], name="p"))
        await server.received_message("the start", lambda message: message.get("method") == "process/start")
        await p.disconnect()
        await server.received_message("the repeated one", lambda _: len(p.sent("process/start")) == 2)
        p.restart("new")
        p.output(1, "new")
        start = next(m for m in reversed(server.received) if m.get("method") == "process/start")
        result = {"pid": 1, "incarnation": OLD, "replayed": True}
        server.send(json.dumps({"id": start["id"], "result": result}))
        process = await within(10, "the start", starting)
        await is_restarted("its output", process.chunks().__anext__())


async def test_each_request_names_the_incarnation_of_its_handle() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, _ = await following(p, host)
        await use(process)
        await process.stdin.write("input")
        await process.stdin.close()
        methods = [
            "read",
            "seek",
            "write",
            "closeStdin",
            "wait",
            "resize",
            "signal",
            "terminate",
            "release",
            "forget",
            "snapshot",
        ]
        for method in methods:
            sent = p.sent(f"process/{method}")
            assert sent and all(params["incarnation"] == OLD for params in sent), (method, sent)
        consumed = {"processId": "p", "incarnation": OLD, "seq": 1}
        await server.received_message("consumption", lambda message: message.get("params") == consumed)
        await process.restart(grace=0)
        assert p.sent("process/restart")[-1]["incarnation"] == OLD
        assert (process.incarnation, p.incarnation) == (NEW, OLD)
        p.incarnation = NEW
        await process.signal("TERM")
        assert p.sent("process/signal")[-1]["incarnation"] == NEW


async def use(process: remex_client.ProcessRef) -> None:
    """Makes each request about a process."""
    await process.read()
    await process.seek({"offset": 0})
    await process.write("input")
    await process.close_stdin()
    await remex_client.ProcessRef.wait(process)
    await process.resize(1, 1)
    await process.signal("INT")
    await process.kill()
    await process.terminate()
    await process.release()
    await process.forget()
    await process.snapshot()


async def test_a_handle_on_a_restarted_process_does_nothing_to_the_new_one() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        async with await host.start(["x"], name="p", stdin="pipe", restartable=True) as process:
            await process.stdin.write("input that was not answered\n")
            p.restart("new")
            await p.disconnect()
            await process.stdin.write("and more of it\n")
            await is_restarted("the input", process.stdin.drain())
            calls = [process.signal("KILL"), process.kill(), process.write("x"), process.resize(1, 1)]
            for call in [*calls, process.snapshot(), process.read(), process.restart(), process.forget()]:
                await is_restarted("a call", call)
        # The end of the block has not ended the new one either.
        assert all(params["incarnation"] == OLD for params in p.sent("process/terminate"))
        assert p.incarnation == NEW


async def test_a_reference_is_to_whichever_runs_unless_it_names_one() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        any_of_them = host.process_ref("s", "p")
        [info] = await host.processes()
        first = host.process_ref("s", "p", incarnation=info.incarnation)
        assert (any_of_them.incarnation, first.incarnation) == (None, OLD)
        await use(any_of_them)
        assert not any("incarnation" in (message.get("params") or {}) for message in server.received)
        await use(first)
        p.restart("new")
        await use(any_of_them)
        await is_restarted("a read", first.read())
        assert await first.info() is None
        # After a restart of its own, it is to the new one.
        p.incarnation = OLD
        await first.restart()
        assert first.incarnation == NEW


async def test_what_was_consumed_of_one_process_is_not_added_to_that_of_another() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        session = host._session
        session.report_consumed("p", 9, OLD)
        session.report_consumed("p", 7, OLD)
        session.report_consumed("q", 9, OLD)
        session.report_consumed("q", 3, NEW)
        notes = [json.loads(note)["params"] for note in session.take_notes()]
        assert [(note["processId"], note["incarnation"], note["seq"]) for note in notes] == [
            ("p", OLD, 9),
            ("q", OLD, 9),
            ("q", NEW, 3),
        ]
        assert server.connections == 1


async def test_an_ended_process_that_was_restarted_gets_a_new_handle() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, _ = await following(p, host)
        p.end(2, 3)
        assert (await within(10, "its end", process.wait_closed())).exit_code == 3
        assert (await host.process("p")).incarnation == OLD
        await p.disconnect()
        p.restart("new")
        again = await within(10, "a handle", host.process("p"))
        assert (again.incarnation, again.exit) == (NEW, None)
        assert await next_text(again.chunks()) == "new"
        assert (await process.wait()).exit_code == 3


async def test_the_rest_of_a_process_comes_after_the_answer_to_its_restart() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, chunks = await following(p, host)
        waiting = asyncio.create_task(process.wait())
        await process.restart()
        p.incarnation = NEW
        new = process.chunks()
        p.output(2, "rest", OLD)
        assert await next_text(chunks) == "rest"
        about = {"processId": "p", "incarnation": OLD, "seq": 2}
        await server.received_message("consumption of the old one", lambda m: m.get("params") == about)
        p.end(3, 9, OLD)
        p.output(1, "n1", NEW)
        p.output(2, "n2", NEW)
        assert [await next_text(new) for _ in range(2)] == ["n1", "n2"]
        assert [chunk async for chunk in chunks] == []
        assert (await within(10, "its exit", waiting)).exit_code == 9
        about = {"processId": "p", "incarnation": NEW, "seq": 2}
        await server.received_message("consumption of the new one", lambda m: m.get("params") == about)
        assert not any(params["seq"] > 2 for params in p.sent("flow/consumed") if params["incarnation"] == NEW)
        assert p.sent("process/read") == []


@pytest.mark.parametrize("has_handle", [True, False])
async def test_the_rest_comes_after_a_restart_by_a_reference(has_handle: bool) -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, chunks = await following(p, host)
        await host.process_ref("s", "p").restart()
        p.incarnation, p.log = NEW, ["n1"]
        again = await host.process("p") if has_handle else None
        p.output(2, "rest", OLD)
        p.end(3, 9, OLD)
        p.output(1, "n1", NEW)
        assert await next_text(chunks) == "rest"
        assert (await within(10, "its end", process.wait_closed())).exit_code == 9
        await within(10, "an answer behind that", host.call("environment/status"))
        # Without a handle, it is discarded, and what is retained can be read by a later one.
        again = again or await host.process("p")
        assert await next_text(again.chunks()) == "n1"


async def test_after_a_disconnect_the_rest_of_a_restarted_process_is_lost() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, chunks = await following(p, host)
        await process.restart()
        new = process.chunks()
        p.output(2, "rest", OLD)
        assert await next_text(chunks) == "rest"
        p.restart("n1")
        await p.disconnect()
        await is_restarted("the rest", chunks.__anext__())
        assert await next_text(new) == "n1"


async def test_two_restarts_in_a_row_end_each_process() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, first = await following(p, host)
        await process.restart()
        p.incarnation = NEW
        second = process.chunks()
        await process.restart()
        third = process.chunks()
        p.output(2, "end 8", OLD)
        p.end(3, 8, OLD)
        p.output(1, "end 9", NEW)
        p.end(2, 9, NEW)
        p.output(1, "third", NEW + 1)
        assert [chunk.data async for chunk in first] == [b"end 8"]
        assert [chunk.data async for chunk in second] == [b"end 9"]
        assert await next_text(third) == "third"


async def test_two_restarts_with_one_outcome_make_one_process() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, old = await following(p, host)
        await within(10, "both restarts", asyncio.gather(process.restart(), process.restart(grace=0)))
        new = process.chunks()
        p.end(2, 9, OLD)
        p.output(1, "n1", NEW)
        assert [chunk async for chunk in old] == []
        assert await next_text(new) == "n1"
        assert process._queue.handles == 1


async def test_a_client_that_was_away_learns_of_a_restart(server: Server, tmp_path: Path) -> None:
    again = tmp_path / "again"
    # The second one has more events than the first one at any time, so that it could go on at the same number.
    script = f"[ -e {again} ] && seq 10000 || echo old; exec cat"
    async with (
        proxied(server.unix) as (url, proxy),
        remex_client.connect(server.unix) as other,
        remex_client.connect(url, session="away", handshake_timeout=60.0) as host,
    ):
        process = await host.start(script, name="p", stdin="pipe", restartable=True)
        chunks = process.chunks()
        assert await next_text(chunks) == "old\n"
        proxy.is_open.clear()
        proxy.disconnect()
        await within(30, "the server to notice that", detached(other, "away"))
        again.touch()
        await process.stdin.write("for the old one\n")
        reference = other.process_ref("away", "p")
        await within(30, "the restart", reference.restart(grace=0))
        await within(30, "the output of the new one", reference.wait_for(r"\n10000\n"))
        proxy.is_open.set()

        # What is streamed is never of the new one.
        await is_restarted("the end of the output", chunks.__anext__())
        await is_restarted("the end of the input", process.stdin.drain())
        for call in [process.write("more\n"), process.signal("KILL"), process.kill(), process.wait()]:
            await is_restarted("a call", call)
        assert await process.info() is None

        new = await within(10, "a handle", host.process("p"))
        assert new.incarnation not in (None, process.incarnation)
        result = await within(30, "its output", new.communicate("for the new one\n"))
        assert result.text == "".join(f"{number}\n" for number in range(1, 10_001)) + "for the new one\n"
        await host.end()


async def test_a_slow_consumer_gets_all_of_a_process_that_is_restarted(server: Server) -> None:
    numbers = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    async with remex_client.connect(server.unix) as host:
        # More than is streamed ahead of a consumer.
        process = await host.start("seq 200000; exec sleep 1000", restartable=True, retain_bytes=16 << 20)
        old = process.events()
        reference = host.process_ref(host.session_id, process.id)
        await within(30, "all of its output", reference.wait_for(r"\n200000\n"))
        await within(30, "the restart", process.restart(grace=0))
        new = process.events()

        async def everything() -> list[remex_client.Event]:
            return [event async for event in old]

        events = await within(60, "the rest of the old one", everything())
        chunks = [event.data for event in events if isinstance(event, remex_client.Chunk)]
        assert b"".join(chunks) == numbers
        assert [type(event) for event in events[len(chunks) :]] == [remex_client.Exited, remex_client.Closed]
        data = b""
        while len(data) < len(numbers):
            event = await within(30, "output of the new one", new.__anext__())
            assert isinstance(event, remex_client.Chunk), event
            data += event.data
        assert data == numbers


async def test_a_handle_on_a_process_that_has_closed_does_not_wait_for_the_rest_after_a_restart() -> None:
    p = Restartable()

    def answer(method: str, params: dict[str, Any]) -> Any:
        if method != "process/read":
            return p.answer(method, params)
        if params["afterSeq"] == 1:
            return None
        # There is more, and the close came before anybody here followed it.
        chunks = [{"seq": 1, **chunk("old")}] if params["afterSeq"] == 0 else []
        state = {"exited": True, "exitCode": 0, "closed": True, "incarnation": OLD}
        return {"chunks": chunks, "nextSeq": 2 if chunks else 5, **state}

    p.server = ScriptedServer(answer)
    async with p.server as server, remex_client.connect(server.url) as host:
        process = await within(10, "a handle", host.process("p"))
        chunks = process.chunks()
        assert await next_text(chunks) == "old"

        def is_second(message: dict[str, Any]) -> bool:
            return message.get("method") == "process/read" and message["params"]["afterSeq"] == 1

        read = await server.received_message("the second read", is_second)
        await within(10, "the restart", host.process_ref("s", "p").restart())
        data = {"kind": "unknownProcess", "restarted": True}
        error = {"code": -32600, "message": "process `p` was restarted since", "data": data}
        server.send(json.dumps({"id": read["id"], "error": error}))
        await is_restarted("the end of the output", chunks.__anext__())
