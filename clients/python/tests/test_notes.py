"""Acknowledgements for a server that does not read: they cost little memory, and are sent when it reads again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from harness import within

from remex_client._link import Link
from remex_client._notes import Notes


class Sender:
    """Sends notes on a link that cannot receive."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def on_message(self, buffer: bytearray, start: int, end: int) -> None:
        raise AssertionError("nothing arrives")

    def on_binary(self, buffer: bytearray, start: int, end: int) -> None:
        raise AssertionError("nothing arrives")

    def on_pong(self) -> None:
        raise AssertionError("nothing arrives")

    def take_notes(self) -> Iterator[bytes]:
        return self.notes.take()


class Written(asyncio.WriteTransport):
    """What is written to a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.is_written = asyncio.Event()

    def write(self, data: Any) -> None:
        self.data += data
        self.is_written.set()

    def is_closing(self) -> bool:
        return False

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.splitlines()]


async def test_while_a_connection_takes_no_more_only_the_newest_of_each_kind_waits() -> None:
    notes, written = Notes(), Written()
    link = Link(is_websocket=False)
    link.connection_made(written)
    link.attach(Sender(notes))
    link.pause_writing()
    for seq in range(1, 101):
        notes.mark = seq
        notes.add_consumed("p", 7, seq)
        notes.add_discarded("p", 8, 2 * seq, is_known=False)
        notes.add_body_consumed("r", seq)
        link.flush()
    assert written.data == b""
    link.resume_writing()
    await within(10, "what waits", written.is_written.wait())
    assert [message["params"] for message in written.messages()] == [
        {"mark": 100},
        {"processId": "p", "incarnation": 7, "seq": 100},
        {"processId": "p", "incarnation": 8, "seq": 200},
        {"requestId": "r", "seq": 100},
    ]


async def test_only_the_newest_ping_is_answered_once_the_connection_takes_more() -> None:
    written = Written()
    link = Link(is_websocket=True)
    link.connection_made(written)
    link._is_upgrading = False
    link.attach(Sender(Notes()))
    link.pause_writing()
    for payload in (b"1", b"2"):
        link.feed(b"\x89\x01" + payload)
        link.flush()
    assert written.data == b""
    link.resume_writing()
    await within(10, "the pong", written.is_written.wait())
    # A masked frame of one byte.
    assert len(written.data) == 7
    assert bytes([written.data[6] ^ written.data[2]]) == b"2"


def test_reports_about_unknown_processes_and_refusals_are_bounded() -> None:
    notes = Notes()
    for number in range(20_000):
        notes.add_discarded(f"p{number}", None, 1, is_known=False)
        notes.add_refusal(number)
    notes.add_discarded("x" * 1025, None, 1, is_known=True)
    notes.add_refusal("x" * 1025)
    notes.add_refusal([1])
    notes.add_discarded("p1", None, 2, is_known=False)
    notes.add_discarded("known", None, 1, is_known=True)
    messages = [json.loads(note) for note in notes.take()]
    reports = [message["params"] for message in messages if "params" in message]
    assert len(reports) == (16 << 10) + 1
    assert (reports[1]["seq"], reports[-1]["processId"]) == (2, "known")
    assert len([message for message in messages if "error" in message]) == 256
    assert list(notes.take()) == []
