"""Binary messages: what carries bytes between the client and servers that have the capability."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import ScriptedServer, Server, proxied, within

import remex_client
from remex_client import Chunk, ProtocolError, UsageError
from remex_client._inbox import Inbox
from remex_client._link import Link
from remex_client._route import Route


def line(message: bytes) -> bytes:
    """Returns a binary message as it is between lines."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def output(process_id: str, seq: int, data: bytes, stream: int = 0, session_id: str = "") -> bytes:
    flags = 2 if session_id else 0
    lengths = len(process_id).to_bytes(2, "big") + len(session_id).to_bytes(2, "big")
    head = bytes([1, stream, flags, 0]) + lengths + seq.to_bytes(8, "big") + bytes(8)
    return head + (process_id + session_id).encode() + data


def attached(message: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(message).encode()
    return b"\2\0\0\0" + len(text).to_bytes(4, "big") + text + data


def marker(name: str) -> bytes:
    return f"<the bytes of {name}, twice the bytes of {name}>".encode()


def base64_spellings(data: bytes) -> list[bytes]:
    """Returns what base64 of anything that contains the data contains."""
    return [base64.b64encode(b"x" * shift + data)[4 if shift else 0 : -4] for shift in range(3)]


def unmasked(sent: bytes) -> bytes:
    """Returns the payloads of the frames of a client, behind the request for the upgrade."""
    frames, at, payloads = sent.partition(b"\r\n\r\n")[2], 0, b""
    while at + 2 <= len(frames):
        length, head = frames[at + 1] & 0x7F, 2
        if length >= 126:
            head = 4 if length == 126 else 10
            length = int.from_bytes(frames[at + 2 : at + head], "big")
        key, start = frames[at + head : at + head + 4], at + head + 4
        payloads += bytes(byte ^ key[index % 4] for index, byte in enumerate(frames[start : start + length]))
        at = start + length
    return payloads


@pytest.mark.parametrize("transport", ["unix", "ws"])
async def test_all_bytes_travel_without_base64(transport: str, server: Server, web: str, tmp_path: Path) -> None:
    sent, received = set(), set()
    target = server.unix if transport == "unix" else server.websocket
    async with proxied(target) as (url, proxy):
        proxy.is_recording = True
        async with remex_client.connect(url) as host:
            files = host.files

            process = await host.start(["cat"], stdin=remex_client.PIPE)
            await process.stdin.write(marker("a process"))
            await process.stdin.close()
            assert [chunk.data async for chunk in process.chunks()] == [marker("a process")]
            assert (await process.snapshot()).stdout == marker("a process")
            sent.add("a process")
            received.add("a process")

            argument = await host.run(["printf", "%s", marker("an argument") + b"\xff"])
            assert argument.stdout == marker("an argument") + b"\xff"
            sent.add("an argument")

            await files.write(tmp_path / "whole", marker("a file"))
            assert await files.read(tmp_path / "whole") == marker("a file")
            sent.add("a file")
            received.add("a file")

            async with files.open(tmp_path / "blocks", "wb") as writer:
                await writer.write(marker("a block"))
            async with files.open(tmp_path / "blocks") as reader:
                assert await reader.read() == marker("a block")
            sent.add("a block")
            received.add("a block")

            await files.symlink(tmp_path / "link", marker("a link"))
            assert await files.read_link(tmp_path / "link") == marker("a link").decode()
            sent.add("a link")
            received.add("a link")

            response = await host.http.post(f"{web}/echo", marker("a body"))
            assert response.body == marker("a body")
            sent.add("a body")
            received.add("a body")

            async with await host.http.stream("POST", f"{web}/echo", body=marker("a streamed body")) as streamed:
                assert await streamed.read() == marker("a streamed body")
            sent.add("a streamed body")
            received.add("a streamed body")
        forth = bytes(proxy.forth) if transport == "unix" else unmasked(bytes(proxy.forth))
        back = bytes(proxy.back)
    for names, recorded in ((sent, forth), (received, back)):
        for name in names:
            assert marker(name) in recorded, name
            assert not any(spelling in recorded for spelling in base64_spellings(marker(name))), name


async def test_raw_results_have_base64_whichever_way_they_arrive(host: remex_client.Host, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\0")
    answer = await host.call("fs/readFile", {"path": str(tmp_path / "f")})
    assert answer == {"dataBase64": base64.b64encode(b"\xff\0").decode()}
    await host.call("fs/writeFile", {"path": str(tmp_path / "g"), "dataBase64": b"\0\xff"})
    await host.call("fs/writeFile", {"path": str(tmp_path / "h"), "dataBase64": "AP8="})
    assert (tmp_path / "g").read_bytes() == (tmp_path / "h").read_bytes() == b"\0\xff"


# What a scripted server does.

NOTHING_READ = {"chunks": [], "nextSeq": 1, "exited": False, "exitCode": None, "closed": False}


def with_binary(result: dict[str, Any]) -> dict[str, Any]:
    result["capabilities"]["enabled"].append("binaryFrames")
    return result


class Writes:
    """A server that answers writes on its second connection only; `binary` are its connections with the capability."""

    def __init__(self, binary: int, limit: int | None = None) -> None:
        self.server = ScriptedServer(self.answer, self.welcome)
        self.binary = binary
        self.limit = limit
        self.chunks: list[tuple[int, Any]] = []
        self.ids: list[str] = []

    def welcome(self, result: dict[str, Any]) -> dict[str, Any]:
        if self.limit is not None:
            result["limits"] = {"messageBytes": self.limit}
        return with_binary(result) if self.server.connections == self.binary else result

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        if method == "process/write":
            self.chunks.append((self.server.connections, params["chunk"]))
            self.ids.append(params["writeId"])
        if method in ("process/write", "fs/writeFile"):
            return None if self.server.connections == 1 else {"status": "accepted"}
        return NOTHING_READ if method == "process/read" else {}


def is_call(method: str) -> Callable[[dict[str, Any]], bool]:
    return lambda message: message.get("method") == method


def requests_of(server: ScriptedServer, method: str) -> list[dict[str, Any]]:
    return [message for message in server.received if message.get("method") == method]


@pytest.mark.parametrize(("binary", "later"), [(1, "b3RoZXI="), (2, b"other")])
async def test_each_connection_has_its_own_form(binary: int, later: str | bytes) -> None:
    """A write that is pending when the capability goes or comes arrives once, in a form that the server reads."""
    writes = Writes(binary)
    async with writes.server as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"], stdin=remex_client.PIPE)
        await process.stdin.write(b"first")
        await server.received_message("the write", is_call("process/write"))
        server.disconnect()
        await server.connected(2)
        await within(10, "the answer", process.stdin.drain())
        await process.stdin.write(b"other")
        await within(10, "the next answer", process.stdin.drain())
    text = base64.b64encode(b"first").decode()
    assert writes.chunks == [(1, b"first" if binary == 1 else text), (2, text), (2, later)]
    assert writes.ids[0] == writes.ids[1] != writes.ids[2]


async def test_what_fits_into_a_binary_message_only_fails_without_them() -> None:
    writes = Writes(binary=1, limit=500)
    async with writes.server as server, remex_client.connect(server.url) as host:
        writing = asyncio.create_task(host.files.write("/f", b"x" * 400))
        sent = await server.received_message("the write", is_call("fs/writeFile"))
        assert sent["params"]["dataBase64"] == b"x" * 400
        with pytest.raises(UsageError, match="the server accepts 500"):
            await host.files.write("/f", b"x" * 500)
        server.disconnect()
        with pytest.raises(UsageError, match="the server accepts 500"):
            await within(10, "the error", writing)
        assert len(requests_of(server, "fs/writeFile")) == 1


async def test_an_invalid_reference_fails_only_what_contains_it() -> None:
    bad = {"processId": "", "seq": 1, "stream": "stdout", "chunk": [0, 9]}

    def answer(method: str, params: dict[str, Any]) -> Any:
        if method == "http/request":
            return {"status": 200, "headers": [], "bodyBase64": ""}
        return None if method == "fs/readFile" else NOTHING_READ if method == "process/read" else {}

    async with ScriptedServer(answer, with_binary) as server, remex_client.connect(server.url) as host:
        failing, going = await host.start(["x"]), await host.start(["x"])
        stream = await host.http.stream("GET", "http://h/")
        server.send_binary(attached({"method": "process/output", "params": {**bad, "processId": failing.id}}, b"abc"))
        body = {"requestId": stream._request_id, "seq": 1, "deltaBase64": [1, 3], "done": False, "error": None}
        server.send_binary(attached({"method": "http/request/bodyDelta", "params": body}, b"abc"))
        with pytest.raises(ProtocolError, match="9 bytes at 0 exceed the 3 bytes attached"):
            await within(10, "the output", failing.chunks().__anext__())
        with pytest.raises(ProtocolError, match="3 bytes at 1 exceed the 3 bytes attached"):
            await within(10, "the body", stream.read())
        for number, read in enumerate((partial(host.call, "fs/readFile", {}), partial(host.files.read, "/f")), 1):
            reading = asyncio.ensure_future(read())

            def has_asked(_: object, number: int = number) -> bool:
                return len(requests_of(server, "fs/readFile")) == number

            await server.received_message("the request", has_asked)
            asked = requests_of(server, "fs/readFile")[-1]
            server.send_binary(attached({"id": asked["id"], "result": {"dataBase64": [0]}}, b"abc"))
            with pytest.raises(ProtocolError, match="their offset and their length"):
                await within(10, "the answer", reading)
        server.send_binary(output(going.id, 1, b"fine\n", stream=7))
        assert await within(10, "other output", going.chunks().__anext__()) == Chunk(1, "unknown", b"fine\n")
        assert host.disconnects == 0


@pytest.mark.parametrize("malformed", [b"\3abc", b"", b"\1\0\0", b"\2\0\0\0\0\0\0\2[]", b"\2\0\0\0\0\0\0\1{"])
async def test_a_malformed_binary_message_ends_the_connection(malformed: bytes) -> None:
    server = ScriptedServer(lambda method, params: {}, with_binary)
    async with server, remex_client.connect(server.url) as host:
        server.send_binary(malformed)
        await server.connected(2)
        assert host.disconnects == 1
        await within(10, "an answer", host.call("environment/status"))


async def test_malformed_binary_messages_count_as_protocol_errors() -> None:
    server = ScriptedServer(lambda method, params: {}, with_binary)
    async with server, remex_client.connect(server.url) as host:
        while host.state.lost is None:
            if host.state.state == "connected":
                server.send_binary(b"\3")
            await within(30, "a change", host.state_changed())
        assert host.state.lost.reason == "protocol"
        assert host.disconnects == 8


async def test_output_of_an_observed_session_is_for_its_observer() -> None:
    owner: Any = SimpleNamespace(routes={("session", "s"): Route("session/observe")})
    message = bytearray(output("p", 3, b"x", stream=1, session_id="s") + output("p", 4, b"x", session_id="other"))
    half = len(output("p", 3, b"x", session_id="s"))
    inbox = Inbox(owner)
    inbox.on_binary(message, 0, half)
    inbox.on_binary(message, half, len(message))
    note = await within(1, "the output", owner.routes["session", "s"].next())
    assert note == {"processId": "p", "incarnation": None, "event": Chunk(3, "stderr", b"x")}
    assert not owner.routes["session", "s"]._items


# Links.


class Collector:
    """A handler that keeps the messages of a link, and enables binary messages as the handshake does."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.messages: list[tuple[str, bytes]] = []

    def on_message(self, buffer: bytearray, start: int, end: int) -> None:
        message = bytes(buffer[start:end])
        self.messages.append(("text", message))
        if message == b'{"enable":1}':
            self.link.is_binary = True

    def on_binary(self, buffer: bytearray, start: int, end: int) -> None:
        self.messages.append(("binary", bytes(buffer[start:end])))

    def on_pong(self) -> None:
        pass

    def take_notes(self) -> Iterator[bytes]:
        return iter(())


def linked(is_websocket: bool) -> tuple[Link, Collector]:
    link = Link(is_websocket)
    collector = Collector(link)
    link._is_upgrading, link.handler = False, collector
    return link, collector


PIECES = [b"\1\n\0\n" + bytes(range(40)), b"", b'\2\n{"a":1}\n\0', b"\0" * 7]

LINES = b"".join(
    [
        b"\0\0\0\0\1\n",  # Not a binary message yet.
        b'{"enable":1}\n',
        line(PIECES[0]),
        b"\r\n\n",
        line(PIECES[1]),
        line(PIECES[2]),
        b'{"b":2}\r\n',
        line(PIECES[3]),
        b'{"c":3}\n',
    ]
)
EXPECTED = [
    ("text", b"\0\0\0\0\1"),
    ("text", b'{"enable":1}'),
    ("binary", PIECES[0]),
    ("binary", PIECES[1]),
    ("binary", PIECES[2]),
    ("text", b'{"b":2}\r'),
    ("binary", PIECES[3]),
    ("text", b'{"c":3}'),
]


async def test_binary_messages_between_lines_may_arrive_in_any_pieces() -> None:
    for at in range(len(LINES) + 1):
        link, collector = linked(is_websocket=False)
        link.feed(LINES[:at])
        link.feed(LINES[at:])
        assert collector.messages == EXPECTED, at
        assert not link.closed.done()
    link, collector = linked(is_websocket=False)
    for at in range(len(LINES)):
        link.feed(LINES[at : at + 1])
    assert collector.messages == EXPECTED


async def test_on_a_websocket_the_kind_of_the_frame_tells_binary_messages() -> None:
    link, collector = linked(is_websocket=True)
    enable = b'{"enable":1}'
    frames = b"\x82\1x" + bytes([0x81, len(enable)]) + enable + b"\x82\3\1\n\0" + b"\x81\2{}"
    fragments = b"\x02\1\1" + b"\x89\1p" + b"\x80\2ab" + b"\x01\1{" + b"\x80\1}"
    for at in range(len(frames + fragments)):
        link.feed((frames + fragments)[at : at + 1])
    assert collector.messages == [
        ("text", b"x"),
        ("text", enable),
        ("binary", b"\1\n\0"),
        ("text", b"{}"),
        ("binary", b"\1ab"),
        ("text", b"{}"),
    ]
    assert not link.closed.done()


async def test_memory_grows_with_what_has_arrived() -> None:
    link, collector = linked(is_websocket=False)
    link.is_binary = True
    before, length = len(link._buffer), 1 << 30
    link.feed(b"\0" + length.to_bytes(4, "big"))
    assert len(link._buffer) == before
    piece = bytes(1 << 20)
    for number in range(1, 9):
        link.feed(piece)
        assert len(link._buffer) <= 4 * (number << 20) + before
    assert not link.closed.done()
    link, collector = linked(is_websocket=False)
    link.is_binary = True
    link.feed(b"\0" + (length + 1).to_bytes(4, "big"))
    assert link.closed.result() == "the server sent a message that is too long"
    assert collector.messages == []


async def test_json_in_a_binary_message_is_json_all_the_same() -> None:
    server = ScriptedServer(lambda method, params: NOTHING_READ if method == "process/read" else {}, with_binary)
    async with server, remex_client.connect(server.url) as host:
        process = await host.start(["x"])
        params = {"processId": process.id, "seq": 1, "stream": "stdout", "chunk": "aGkK"}
        server.send_binary(json.dumps({"method": "process/output", "params": params}).encode())
        assert await within(10, "output", process.chunks().__anext__()) == Chunk(1, "stdout", b"hi\n")
        assert host.disconnects == 0
