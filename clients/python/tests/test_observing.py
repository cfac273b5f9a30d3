"""Observers of processes that are restarted: nothing of the new process is left out."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from harness import ScriptedServer, within

import remex_client
from remex_client import Closed
from remex_client._observe import ObservedEvents

OLD, NEW = 41, 42


class Watched:
    """A server with a session `w`, whose process `p` somebody may restart."""

    def __init__(self) -> None:
        self.listed = OLD
        #: Whether the next request to observe gets no answer.
        self.is_silent = False
        self.server = ScriptedServer(self.answer)

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        if method == "session/list":
            times = {"detachedAtMs": None, "expiresAtMs": None}
            entry = {"sessionId": "w", "identity": "owner", "clientName": "c", "attached": True, "processes": 1}
            return {"sessions": [{**entry, **times}]}
        if method == "process/list":
            return {"processes": [{"processId": "p", "sessionId": "w", "incarnation": self.listed}]}
        if method == "session/observe" and self.is_silent:
            return None
        return {}

    def send(self, incarnation: int, seq: int) -> None:
        chunk = base64.b64encode(str(seq).encode()).decode()
        self.note("output", incarnation, {"seq": seq, "stream": "stdout", "chunk": chunk})

    def note(self, kind: str, incarnation: int, params: dict[str, Any]) -> None:
        of = {"processId": "p", "sessionId": "w", "incarnation": incarnation}
        self.server.send(json.dumps({"method": f"process/{kind}", "params": {**of, **params}}))

    async def wanted(self, number: int) -> Any:
        """Returns what request `number` to observe asks for."""

        def asked() -> list[Any]:
            return [m["params"]["fromSeq"] for m in self.server.received if m.get("method") == "session/observe"]

        await self.server.received_message(f"request {number}", lambda _: len(asked()) >= number)
        return asked()[number - 1]


async def seq_of(observed: ObservedEvents) -> int:
    process_id, event = await within(10, "an event", observed.__anext__())
    assert process_id == "p"
    return event.seq


async def test_a_process_that_was_restarted_while_its_observer_was_away_is_wanted_from_its_first_event() -> None:
    w = Watched()
    async with w.server as server, remex_client.connect(server.url) as host:
        observed = await host.observe("w")
        for seq in (1, 2, 3):
            w.send(OLD, seq)
            assert await seq_of(observed) == seq
        w.listed = NEW
        server.disconnect()
        following = asyncio.create_task(seq_of(observed))
        assert await w.wanted(2) == {"p": 1}
        w.send(NEW, 1)
        assert await following == 1


async def test_a_process_that_is_restarted_between_the_list_and_the_request_is_asked_for_again() -> None:
    w = Watched()
    async with w.server as server, remex_client.connect(server.url) as host:
        observed = await host.observe("w")
        w.send(OLD, 1)
        assert await seq_of(observed) == 1
        server.disconnect()
        following = asyncio.create_task(seq_of(observed))
        assert await w.wanted(2) == {"p": 2}
        w.send(NEW, 2)
        assert await w.wanted(3) == {"p": 1}
        w.send(NEW, 1)
        assert await following == 1


async def test_a_repeated_close_is_not_the_beginning_of_another_process() -> None:
    w = Watched()
    async with w.server as server, remex_client.connect(server.url) as host:
        observed = await host.observe("w")
        for _ in ("once", "again"):
            w.note("closed", OLD, {"seq": 1})
        w.send(NEW, 1)
        assert isinstance((await within(10, "the close", observed.__anext__()))[1], Closed)
        assert await seq_of(observed) == 1
        assert not observed._ready


async def test_an_observer_that_gives_up_while_it_is_away_asks_again_later() -> None:
    w = Watched()
    async with w.server as server, remex_client.connect(server.url) as host:
        observed = await host.observe("w")
        w.is_silent = True
        server.disconnect()
        given_up = asyncio.create_task(observed.__anext__())
        await w.wanted(2)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        w.is_silent = False
        following = asyncio.create_task(seq_of(observed))
        await w.wanted(3)
        w.send(OLD, 1)
        assert await following == 1
