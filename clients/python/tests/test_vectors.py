"""The test vectors of the protocol."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT, ScriptedServer, vectors, within

import remex_client
from remex_client import Chunk, Closed, Exited, Gap, ProtocolError, RefusedError, models
from remex_client._binary import (
    BYTES,
    MESSAGE,
    OUTPUT,
    message_head,
    read_message,
    read_output,
    with_base64,
    write_message,
)
from remex_client._call import may_repeat
from remex_client._codec import decode_base64, encode_base64, path_from_wire, path_to_wire
from remex_client._event import decode_chunk
from remex_client._inbox import Inbox


def shown(event: remex_client.Event) -> dict[str, Any]:
    """Writes an event as the vectors do."""
    if isinstance(event, Chunk):
        return {"output": {"seq": event.seq, "stream": event.stream, "text": event.data.decode()}}
    if isinstance(event, Exited):
        return {"exited": {"code": event.exit.exit_code, "signal": event.exit.signal, "cause": event.exit.cause}}
    if isinstance(event, Gap):
        return {"gap": {"fromSeq": event.from_seq, "toSeq": event.to_seq, "bytes": event.bytes}}
    assert isinstance(event, Closed)
    return {"closed": {}}


def shown_path(path: str) -> str:
    try:
        path.encode()
        return path
    except UnicodeEncodeError:
        return path_to_wire(path)


class Story:
    """One line of `clients.jsonl`."""

    def __init__(self, vector: dict[str, Any]) -> None:
        self.vector = vector
        self.ids: dict[tuple[str, Any], Any] = {}

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        if method == "process/read":
            name = next(n for (kind, n), own in self.ids.items() if (kind, own) == ("processId", params["processId"]))
            return self.read(name, params["afterSeq"])
        if method == "http/request":
            return {"status": 200, "headers": [], "bodyBase64": ""}
        return {}

    def read(self, name: str, after: int) -> dict[str, Any]:
        log = self.vector.get("log", {}).get(name)
        if log is None:
            return {"chunks": [], "nextSeq": after + 1, "exited": False, "exitCode": None, "closed": False}
        reply = dict(log["reply"])
        reply["chunks"] = [chunk for chunk in reply["chunks"] if chunk["seq"] > after]
        evicted = log.get("evicted")
        if evicted is not None and after < evicted["toSeq"]:
            reply["gap"] = {"fromSeq": after + 1, **evicted}
        return reply

    def replaced(self, text: str) -> str:
        message = json.loads(text)
        for key in ("processId", "watchId", "requestId"):
            params = message.get("params")
            if isinstance(params, dict) and (own := self.ids.get((key, params.get(key)))) is not None:
                old, new = json.dumps(params[key]), json.dumps(own)
                member = f'"{key}":{new}'.replace("\\", r"\\")
                text = re.sub(rf'"{key}"\s*:\s*{re.escape(old)}', member, text)
        return text

    async def tell(self) -> None:
        opened, expected = self.vector["open"], self.vector["expect"]
        async with ScriptedServer(self.answer) as server, remex_client.connect(server.url) as host:
            processes = {}
            for name in opened.get("processes", []):
                processes[name] = await host.start(["x"])
                self.ids["processId", name] = processes[name].id
            watches = {}
            for number in opened.get("watches", []):
                watches[str(number)] = await host.files.watch("/w")
                self.ids["watchId", number] = watches[str(number)]._id
            streams = {}
            for name in opened.get("streams", []):
                streams[name] = await host.http.stream("GET", "http://h/")
                self.ids["requestId", name] = streams[name]._request_id
            for step in self.vector["steps"]:
                if "disconnect" in step:
                    # Everything before it has arrived.
                    await host.call("environment/status")
                    connections = server.connections
                    server.disconnect()
                    await server.connected(connections + 1)
                else:
                    server.send(self.replaced(step.get("sendText") or json.dumps(step["send"])))
            for name, outcome in expected.get("processes", {}).items():
                await within(10, name, self.check_process(processes[name], outcome))
            for name, looks in expected.get("watches", {}).items():
                await within(10, f"watch {name}", self.check_watch(watches[name], looks))
            for name, outcome in expected.get("streams", {}).items():
                await within(10, f"stream {name}", self.check_stream(streams[name], outcome))
            for message in expected.get("sends", []):
                await server.received_message(str(message), partial(has, expected=message))
            assert host.disconnects == expected["disconnects"]

    async def check_process(self, process: remex_client.Process, outcome: dict[str, Any]) -> None:
        events = process.events()
        assert [shown(await events.__anext__()) for _ in outcome["events"]] == outcome["events"]
        if outcome.get("open"):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(events.__anext__(), 0.05)
        elif outcome.get("error") == "protocol":
            with pytest.raises(ProtocolError):
                await events.__anext__()
        else:
            with pytest.raises(StopAsyncIteration):
                await events.__anext__()

    async def check_watch(self, watch: remex_client.Watch, looks: list[dict[str, Any]]) -> None:
        for look in looks:
            if look.get("error") == "protocol":
                with pytest.raises(ProtocolError):
                    await watch.__anext__()
                continue
            found = await watch.__anext__()
            changes = [[shown_path(change.path), change.kind] for change in found.changes]
            assert {"changes": changes, "overflow": found.overflow} == look

    async def check_stream(self, stream: remex_client.StreamingResponse, outcome: dict[str, Any]) -> None:
        body, error = b"", None
        try:
            async for piece in stream:
                body += piece
        except ProtocolError:
            error = "protocol"
        except RefusedError as refusal:
            error = refusal.message
        assert body.decode() == outcome["body"]
        assert (error is None) == ("error" not in outcome)
        assert outcome.get("error", "") in (error or "")


def has(actual: Any, expected: Any) -> bool:
    """Returns whether a message has at least these members."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(k in actual and has(actual[k], v) for k, v in expected.items())
    return bool(actual == expected)


@pytest.mark.parametrize("vector", vectors("clients.jsonl"), ids=lambda vector: vector["name"])
async def test_a_client_makes_of_messages_what_the_vectors_say(vector: dict[str, Any]) -> None:
    await Story(vector).tell()


@pytest.mark.parametrize("vector", vectors("output.jsonl"), ids=lambda vector: vector["text"])
def test_output_is_decoded(vector: dict[str, Any]) -> None:
    message = json.loads(vector["text"])
    chunk = decode_chunk(message["params"])
    assert (chunk.seq, chunk.stream, chunk.data.hex()) == (vector["seq"], vector["stream"], vector["hex"])
    assert encode_base64(chunk.data) == message["params"]["chunk"]


def with_bytes(params: dict[str, Any]) -> dict[str, Any]:
    """Returns params as the client makes them."""
    names = {"chunk", "dataBase64", "bodyBase64"}
    return {name: decode_base64(value) if name in names else value for name, value in params.items()}


def read_binary(message: bytes) -> Any:
    """Returns the JSON that a binary message stands for."""
    assert message[0] in (OUTPUT, MESSAGE)
    buffer = bytearray(b"before" + message + b"after")
    start, end = len(b"before"), len(b"before") + len(message)
    if message[0] == MESSAGE:
        return with_base64(read_message(buffer, start, end))
    process_id, session_id, incarnation, chunk = read_output(buffer, start, end)
    params = {
        "processId": process_id,
        "sessionId": session_id,
        "incarnation": incarnation,
        "seq": chunk.seq,
        "stream": chunk.stream,
        "chunk": encode_base64(chunk.data),
    }
    return {
        "method": "process/output",
        "params": {name: value for name, value in params.items() if value is not None},
    }


@pytest.mark.parametrize(
    "vector", [vector for vector in vectors("binary.jsonl") if "json" in vector], ids=lambda vector: vector["about"]
)
def test_binary_messages_mean_what_the_vectors_say(vector: dict[str, Any]) -> None:
    message, expected = bytes.fromhex(vector["hex"]), vector["json"]
    if "id" in expected and "method" in expected:
        # A request, which the client writes.
        text, attached = write_message({**expected, "params": with_bytes(expected["params"])})
        assert b"".join([message_head(text), text, *attached]) == message
        return
    if expected.get("params", {}).get("stream") == "future":
        expected["params"]["stream"] = "unknown"
    assert read_binary(message) == expected


class Faults:
    """The owner of an inbox that gets malformed messages."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def on_protocol_error(self, what: str) -> None:
        self.errors.append(what)

    def on_answer(self, call_id: object, message: dict[str, Any], *, is_binary: bool) -> None:
        """Decodes the answer as a caller does."""
        try:
            with_base64(message["result"])
        except ValueError as error:
            self.errors.append(f"call {call_id}: {error}")


@pytest.mark.parametrize(
    "vector", [vector for vector in vectors("binary.jsonl") if "error" in vector], ids=lambda vector: vector["about"]
)
def test_malformed_binary_messages_are_errors_of_what_contains_them(vector: dict[str, Any]) -> None:
    faults: Any = Faults()
    message = bytearray.fromhex(vector["hex"])
    Inbox(faults).on_binary(message, 0, len(message))
    [error] = faults.errors
    assert vector["error"] in error
    # References are errors of the call, everything else of the connection.
    assert error.startswith("call ") == (vector["about"] in ("bytes beyond the end", "bytes of two members"))


def test_every_binary_vector_is_used() -> None:
    lines = vectors("binary.jsonl")
    assert len(lines) > 20
    assert all(("json" in line) != ("error" in line) for line in lines)


def test_the_members_with_bytes_are_those_of_the_models() -> None:
    text = Path(models.__file__).read_text()
    assert set(re.findall(r"^    (\w+): Base64(?:Bytes|Text)", text, re.MULTILINE)) == BYTES


@pytest.mark.parametrize("vector", vectors("paths.jsonl"), ids=lambda vector: vector["text"])
def test_paths_are_spelled_as_the_server_does(vector: dict[str, Any]) -> None:
    if "error" in vector:
        if ":" not in vector["text"]:
            with pytest.raises(remex_client.UsageError):
                path_to_wire(vector["text"])
        return
    assert path_from_wire(vector["uri"]) == vector["native"]
    assert path_to_wire(vector["native"]) == vector["native"]
    assert path_to_wire(vector["native"].encode()) == vector["native"]


def test_a_path_that_is_not_utf8_is_a_uri() -> None:
    assert path_to_wire(b"/a b/\xff") == path_to_wire("/a b/\udcff") == "file:///a%20b/%FF"
    assert path_from_wire("file:///a%20b/%FF") == "/a b/\udcff"


def accepted_calls() -> list[dict[str, Any]]:
    return [
        vector for vector in vectors("calls.jsonl") if "code" not in vector and isinstance(vector.get("params"), dict)
    ]


@pytest.mark.parametrize("vector", accepted_calls(), ids=lambda vector: vector["method"])
def test_accepted_calls_fit_the_models(vector: dict[str, Any]) -> None:
    if vector["method"] not in models.METHODS:
        return  # a notification
    model = getattr(models, models.METHODS[vector["method"]][0])
    assert getattr(model, "__required_keys__", frozenset()) <= vector["params"].keys()


@pytest.fixture(params=["pybase64", "binascii"])
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to decode base64."""
    if request.param == "binascii":
        monkeypatch.setattr(remex_client._codec, "_vector_decode", None)
    elif remex_client._codec._vector_decode is None:
        pytest.skip("the extra `fast` is not installed")


@pytest.mark.usefixtures("codec")
@pytest.mark.parametrize("text", ["%%%", "YQ", "YQ=", "YQ==YQ==", "Y Q=", "YQ==\n", "Y=Q=", "\\/8="])
def test_invalid_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_base64(text)
    with pytest.raises(ValueError):
        decode_base64(memoryview(text.encode()))


@pytest.mark.usefixtures("codec")
@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc", bytes(range(256))])
def test_base64_survives_a_round_trip(data: bytes) -> None:
    assert decode_base64(encode_base64(data)) == data
    assert decode_base64(memoryview(encode_base64(data).encode())) == data


def documented() -> dict[str, str]:
    """Returns what PROTOCOL.md says about repeating each method."""
    text = (ROOT / "PROTOCOL.md").read_text()
    table = text.partition("<!-- again: begin -->")[2].partition("<!-- again: end -->")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    return {method.strip(" `"): again.strip() for methods, again, _ in rows for method in methods.split(",")}


def test_what_is_sent_again_is_what_the_protocol_allows() -> None:
    table = documented()
    assert set(table) == set(models.METHODS)
    conditions: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
        "process/start": ([{"startId": "s"}], [{}]),
        "process/restart": ([{"restartId": "r"}], [{}]),
        "process/write": ([{"writeId": "w"}], [{}]),
        "fs/writeFile": ([{}], [{"ifMatch": "absent"}]),
        "fs/createDirectory": ([{}, {"recursive": True}], [{"recursive": False}]),
        "http/request": (
            [{"method": "GET"}, {"method": "HEAD"}, {"method": "OPTIONS"}],
            [{"method": "POST"}, {"method": "GET", "streamResponse": True}],
        ),
    }
    for method, again in table.items():
        yes, no = conditions.get(method, ([{}], []) if again == "yes" else ([], [{}]))
        assert (again == "if") == (method in conditions), method
        assert all(may_repeat(method, params) for params in yes), method
        assert not any(may_repeat(method, params) for params in no), method


@pytest.mark.parametrize("vector", vectors("envelope.jsonl"), ids=lambda vector: vector["text"][:60])
async def test_messages_of_each_kind_are_told_apart(vector: dict[str, Any]) -> None:
    """A server that sends each of these goes on being served, or is left if the message means nothing."""
    async with ScriptedServer(lambda method, params: {}) as server, remex_client.connect(server.url) as host:
        if "\n" in vector["text"].strip():
            return
        server.send(vector["text"])
        if vector["kind"] == "request" and len(str(vector["id"])) <= 1024:
            refusal = {"id": vector["id"], "error": {"code": -32601}}
            await server.received_message("the refusal", lambda sent: has(sent, refusal))
        await within(10, "an answer", host.call("environment/status"))
        if vector["kind"] != "malformed":
            assert host.disconnects == 0
