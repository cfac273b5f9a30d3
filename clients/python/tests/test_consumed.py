"""What a client reports as consumed of a process that is restarted: nothing waits for what nobody here reads."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest
from harness import within
from test_incarnations import NEW, OLD, Restartable, chunk, following, is_restarted, next_text

import remex_client
from remex_client._queue import AFTER_EVERYTHING
from remex_client._start import terminal_size


def consumed(seq: int, of: int) -> Callable[[dict[str, Any]], bool]:
    """Returns whether a message reports a start as consumed up to an event."""
    return lambda message: message.get("params") == {"processId": "p", "incarnation": of, "seq": seq}


def skipped(of: int) -> Callable[[dict[str, Any]], bool]:
    """Returns whether a message reports all of a start as consumed."""
    return consumed(AFTER_EVERYTHING, of)


async def test_a_process_restarted_by_a_reference_waits_for_nobody() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, _ = await following(p, host)
        p.holds_restarts = True
        restarting = asyncio.create_task(host.process_ref("s", "p").restart())
        await server.received_message("the restart", lambda m: m.get("method") == "process/restart")
        await p.disconnect()
        await server.received_message("the repeated one", lambda _: len(p.sent("process/restart")) == 2)
        p.restart("new")
        # Until the answer, it may be for a handle.
        p.output(1, "new", NEW)
        request = next(m for m in reversed(server.received) if m.get("method") == "process/restart")
        result = {"pid": 2, "incarnation": NEW, "replayed": True}
        server.send(json.dumps({"id": request["id"], "result": result}))
        await within(10, "the restart", restarting)
        await server.received_message("the report", skipped(NEW))
        assert process.incarnation == OLD


async def test_an_unread_handle_on_the_old_process_holds_up_no_new_one() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], name="p")
        other = await host.process("p")
        p.output(1, "old", OLD)
        await process.restart()
        await server.received_message("consumption of what came before", consumed(1, OLD))
        for seq in (2, 3):
            p.output(seq, "rest", OLD)
            await server.received_message(f"consumption of {seq}", consumed(seq, OLD))
        p.end(4, 9, OLD)
        assert [chunk.data async for chunk in other.chunks()] == [b"old", b"rest", b"rest"]


async def test_a_queue_that_cannot_go_on_has_consumed_all_of_its_start() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, chunks = await following(p, host)
        await process.restart()
        p.incarnation = NEW
        fresh = process.chunks()
        invalid = {"processId": "p", "incarnation": OLD, "seq": 2, "stream": "stdout", "chunk": "?"}
        server.send(json.dumps({"method": "process/output", "params": invalid}))
        with pytest.raises(remex_client.ProtocolError):
            await next_text(chunks)
        await server.received_message("the report", skipped(OLD))
        p.output(3, "rest", OLD)
        await server.received_message("a report of what follows", consumed(3, OLD))
        p.output(1, "n1", NEW)
        assert await next_text(fresh) == "n1"
        # The same for one that nobody follows.
        server.send(json.dumps({"method": "process/output", "params": {**invalid, "incarnation": NEW + 1}}))
        await server.received_message("the report", skipped(NEW + 1))


async def test_a_dropped_handle_consumes_its_own_start_only() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], name="p")
        reads = len(p.sent("process/read"))
        del process
        gc.collect()
        await server.received_message("the report", skipped(OLD))
        # The close of another start does not end that.
        p.end(2, 0, NEW)
        await within(10, "an answer behind that", host.call("environment/status"))
        assert len(p.sent("process/read")) == reads
        p.restart("new")
        await p.disconnect()
        await server.received_message("the report of the one that runs now", skipped(NEW))


async def test_a_failed_handle_holds_up_no_process_that_was_restarted_meanwhile() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, chunks = await following(p, host)
        invalid = {"processId": "p", "incarnation": OLD, "seq": 2, "stream": "stdout", "chunk": "?"}
        server.send(json.dumps({"method": "process/output", "params": invalid}))
        with pytest.raises(remex_client.ProtocolError):
            await next_text(chunks)
        p.restart("new")
        await p.disconnect()
        await server.received_message("the report", skipped(NEW))
        again = await within(10, "a handle", host.process("p"))
        assert (process.incarnation, again.incarnation) == (OLD, NEW)


async def test_a_poll_from_before_a_restart_consumes_nothing_of_the_new_process() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], name="p")
        p.holds_reads = True
        reading = asyncio.create_task(process.read())
        await server.received_message("the read", lambda m: m.get("method") == "process/read")
        await process.restart()
        await p.answer_reads(1)
        assert len(await within(10, "the answer", reading)) == 1
        await within(10, "an answer behind its report", host.call("environment/status"))
        assert all(params["incarnation"] == OLD for params in p.sent("flow/consumed"))


async def test_a_boolean_is_no_number() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        _, chunks = await following(p, host)
        p.holds_reads = True
        call = asyncio.create_task(host.call("process/read", {"processId": "p", "afterSeq": 0}))
        await server.received_message("the read", lambda m: m.get("method") == "process/read")
        server.send(json.dumps({"id": True, "result": {}}))
        params = {"processId": "p", "incarnation": True, "seq": 2, **chunk("more")}
        server.send(json.dumps({"method": "process/output", "params": params}))
        with pytest.raises(remex_client.ProtocolError, match="incarnation"):
            await next_text(chunks)
        assert not call.done()
        await p.answer_reads(1)
        await within(10, "the answer", call)
    for size in ((True, 80), (24, True)):
        with pytest.raises(remex_client.UsageError):
            terminal_size(size)


async def test_a_full_handle_holds_up_no_process_that_was_restarted_meanwhile() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], name="p")
        # More than what makes room for a read.
        p.output(1, "x" * 600_000, OLD)
        await within(10, "an answer behind that", host.call("environment/status"))
        p.restart("new")
        await p.disconnect()
        await server.received_message("the report", skipped(NEW))
        chunks = process.chunks()
        assert len(await next_text(chunks)) == 600_000
        await is_restarted("the end of the output", chunks.__anext__())


async def test_the_answer_to_a_read_that_names_another_start_gives_nothing_to_the_handle() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        _, chunks = await following(p, host)
        p.holds_reads = True
        await p.disconnect()
        read = await server.received_message("the read", lambda m: m.get("method") == "process/read")
        p.restart("new", "more")
        p.holds_reads = False
        server.send(json.dumps({"id": read["id"], "result": p.result("process/read", read["params"])}))
        await is_restarted("the end of the output", chunks.__anext__())
        await server.received_message("the report", skipped(NEW))


async def test_a_process_whose_close_waits_for_a_read_is_forgotten_after_its_restart() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, chunks = await following(p, host)
        p.holds_reads = True
        await p.disconnect()
        p.output(2, "rest", OLD)
        p.end(3, 9, OLD)
        await process.restart()
        p.incarnation = NEW
        await p.answer_reads(1)
        assert [chunk.data async for chunk in chunks] == [b"rest"]
        assert host._session._earlier == {}
        assert server.connections == 2


async def test_output_before_the_answer_that_confirms_a_process_comes_to_its_consumer_after_a_restart() -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process, chunks = await following(p, host)
        p.holds_reads = True
        await p.disconnect()
        # As a real server spells it.
        params = {"processId": "p", "incarnation": OLD, "seq": 2, **chunk("rest")}
        server.send(json.dumps({"method": "process/output", "params": params}, separators=(",", ":")))
        await process.restart()
        p.incarnation = NEW
        await p.answer_reads(1)
        assert await next_text(chunks) == "rest"
        p.end(3, 9, OLD)
        assert [event async for event in chunks] == []


@pytest.mark.parametrize("has_handle", [True, False])
async def test_the_late_answer_to_a_restart_does_not_take_the_place_of_a_later_one(has_handle: bool) -> None:
    p = Restartable()
    async with p.server as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], name="p")
        other = await host.process("p")
        p.holds_restarts = True
        late = asyncio.create_task(other.restart() if has_handle else host.process_ref("s", "p").restart())
        await server.received_message("a restart", lambda _: len(p.sent("process/restart")) == 1)
        newest = asyncio.create_task(process.restart())
        await server.received_message("both restarts", lambda _: len(p.sent("process/restart")) == 2)
        await p.disconnect()
        await server.received_message("both again", lambda _: len(p.sent("process/restart")) == 4)
        p.incarnation, p.log = NEW + 1, ["newest"]
        first, second = [m["id"] for m in server.received if m.get("method") == "process/restart"][-2:]
        for call_id, incarnation in ((second, NEW + 1), (first, NEW)):
            result = {"pid": incarnation, "incarnation": incarnation, "replayed": True}
            server.send(json.dumps({"id": call_id, "result": result}))
        await within(10, "both answers", asyncio.gather(late, newest))
        assert (process.pid, process.incarnation) == (NEW + 1, NEW + 1)
        chunks = process.chunks()
        assert await next_text(chunks) == "newest"
        p.output(2, "more", NEW + 1)
        assert await next_text(chunks) == "more"
        p.log += ["more", "most"]
        await p.disconnect()
        assert await next_text(chunks) == "most"
        await is_restarted("the output of the old one", other.chunks().__anext__())
