"""Connections, sessions and what happens when they end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import SILENCE, ScriptedServer, Server, proxied, remex, within

import remex_client
from remex_client import (
    ProtocolError,
    RefusedError,
    RequestInterrupted,
    SessionLostError,
    TimedOutError,
    UnauthorizedError,
    UnreachableError,
    UsageError,
)
from remex_client._call import encode
from remex_client._deadline import limited
from remex_client._link import Link, frame
from remex_client._target import Program, parse


@pytest.mark.parametrize("target", ["ftp://h", "unix://relative", "ws://", "host:7070", "", []])
def test_a_bad_address_is_a_usage_error(target: Any) -> None:
    with pytest.raises(UsageError):
        remex_client.connect(target)


def test_ssh_is_a_program() -> None:
    assert parse("ssh://me@far:2222") == Program(
        ("ssh", "-T", "-oBatchMode=yes", "-p", "2222", "--", "me@far", "remex", "proxy")
    )


@pytest.mark.parametrize("target", ["ws://127.0.0.1:1", "unix:///nowhere/at/all", ["/nowhere/at/all"]])
async def test_a_missing_server_is_unreachable(target: Any) -> None:
    with pytest.raises(UnreachableError):
        await remex_client.connect(target)


async def test_nothing_is_sent_to_a_server_in_a_sandbox(tmp_path: Path) -> None:
    url = f"unix://{tmp_path / 's'}"
    sandbox = ["--sandbox", "minimal", "--net", "on", "--read", "/", "--write", str(tmp_path)]
    argv = ["run", *sandbox, "--", remex(), "serve", "--listen", url]
    fake = await asyncio.create_subprocess_exec(remex(), *argv, stdout=subprocess.PIPE)
    assert fake.stdout is not None
    try:
        assert await within(60, "the server in the sandbox", fake.stdout.readline())
        with pytest.raises(UnreachableError, match=f"^cannot trust {url}: .* is in a remex sandbox"):
            await remex_client.connect(url)
    finally:
        fake.terminate()
        await within(60, "its end", fake.wait())


async def test_the_error_has_what_a_program_wrote_to_stderr() -> None:
    with pytest.raises(UnreachableError, match=r"status 7.*no such luck"):
        await remex_client.connect(["sh", "-c", "echo no such luck >&2; exit 7"])


async def test_the_first_connection_is_retried_on_request(tmp_path: Path) -> None:
    path = tmp_path / "s"
    connecting = asyncio.ensure_future(remex_client.connect(f"unix://{path}", connect_retry=20)._connect())
    await asyncio.sleep(0.1)
    assert not connecting.done()
    server = subprocess.Popen([remex(), "serve", "--listen", f"unix://{path}"], stdout=-3, stderr=-3)
    try:
        host = await within(20, "the connection", connecting)
        assert (await host.run(["true"])).ok
        await host.end()
    finally:
        server.terminate()
        server.wait()


async def test_a_session_is_resumed_by_name_with_its_processes(server: Server) -> None:
    first = await remex_client.connect(server.unix, session="work")
    process = await first.start("echo before; read -r x; echo after $x; exit 6", stdin="pipe", name="job")
    await process.wait_for("before")
    await first.close()
    assert first.state.state == "lost"
    async with remex_client.connect(server.websocket, session=remex_client.Resume("work")) as second:
        assert second.session_id == first.session_id
        again = await second.process("job")
        await again.stdin.write(b"x\n")
        await again.stdin.close()
        result = await within(10, "the output", again.communicate())
        assert (result.stdout, result.exit_code) == (b"before\nafter x\n", 6)
        await second.end()
    with pytest.raises(RefusedError) as refusal:
        await remex_client.connect(server.unix, session=remex_client.Resume("work"))
    assert refusal.value.kind == "unknownSession"


async def test_a_session_is_made_if_there_is_none(server: Server) -> None:
    first = await remex_client.connect(server.unix, session="maybe")
    await first.close()
    async with remex_client.connect(server.unix, session="maybe") as second:
        assert second.session_id == first.session_id
        await second.end()


@pytest.mark.parametrize("transport", ["unix", "websocket"])
async def test_a_session_that_another_client_takes_is_lost(server: Server, transport: str) -> None:
    url = getattr(server, transport)
    first = await remex_client.connect(url, session=f"taken-{transport}")
    process = await first.start(["sleep", "1000"])
    async with remex_client.connect(url, session=remex_client.Resume(f"taken-{transport}", takeover=True)) as second:
        with pytest.raises(SessionLostError) as lost:
            await within(10, "the loss", process.wait())
        assert lost.value.reason == "takenOver"
        assert not lost.value.is_retryable
        with pytest.raises(SessionLostError):
            await first.run(["true"])
        await second.end()


async def test_leaving_the_block_ends_a_session_without_a_name(server: Server) -> None:
    async with remex_client.connect(server.unix) as host:
        session_id = host.session_id
        await host.start(["sleep", "1000"])
    async with remex_client.connect(server.unix) as other:
        assert session_id not in [session.id for session in await other.sessions()]


async def test_a_session_that_another_client_ended_is_lost_with_its_reason(server: Server) -> None:
    host = await remex_client.connect(server.unix)
    process = await host.start(["sleep", "1000"])
    async with remex_client.connect(server.websocket) as other:
        await other.end_session(host.session_id)
    with pytest.raises(SessionLostError) as lost:
        while True:
            await within(20, "the loss", process.wait())
            # While it ends, it starts nothing.
            with contextlib.suppress(RefusedError):
                await host.run(["true"])
    assert lost.value.reason == "forgotten"
    assert not lost.value.is_retryable
    assert "expired, was ended, or the server was restarted" in str(lost.value)
    assert "--state" in str(lost.value)


async def test_reconnecting_ends_after_its_time() -> None:
    server = Server()
    host = await remex_client.connect(server.unix, reconnect_timeout=0.5)
    process = await host.start(["sleep", "1000"])
    server.kill()
    with pytest.raises(SessionLostError) as lost:
        await within(20, "the loss", process.wait())
    assert lost.value.reason == "reconnectTimedOut"
    assert lost.value.is_retryable
    assert lost.value.may_have_happened


async def test_a_lost_session_says_what_the_last_attempt_failed_with() -> None:
    def welcome(usual: dict[str, Any]) -> Any:
        return usual if server.connections == 1 else SILENCE

    async with ScriptedServer(lambda method, params: {}, welcome) as server:
        host = await remex_client.connect(server.url, handshake_timeout=0.1, reconnect_timeout=0.5)
        process = await host.start(["x"])
        server.disconnect()
        with pytest.raises(SessionLostError, match=r"handshake with .* timed out after 0\.1 s") as lost:
            await within(20, "the loss", process.wait())
        assert isinstance(lost.value.__cause__, TimedOutError)


async def test_a_token_that_cannot_be_had_is_asked_for_again(server: Server) -> None:
    asked = 0

    def token() -> str:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise RuntimeError("the vault is sealed")
        return "token"

    async with proxied(server.websocket) as (url, proxy), remex_client.connect(url, token=token) as host:
        assert (await host.run(["true"])).ok
        proxy.disconnect()
        assert (await within(20, "a command after the disconnect", host.run(["true"]))).ok
        assert (asked, host.disconnects) == (3, 1)


async def test_a_session_is_lost_if_no_token_can_be_had_in_time(server: Server) -> None:
    tokens = ["token"]

    def token() -> str:
        if not tokens:
            raise RuntimeError("the vault is sealed")
        return tokens.pop()

    async with proxied(server.websocket) as (url, proxy):
        host = await remex_client.connect(url, token=token, reconnect_timeout=0.3)
        proxy.disconnect()
        with pytest.raises(SessionLostError, match="the vault is sealed") as lost:
            await within(20, "the loss", host.run(["true"]))
        assert lost.value.reason == "reconnectTimedOut"


@pytest.mark.parametrize(
    "options",
    [
        {"connect_timeout": -1.0},
        {"connect_timeout": 0.0},
        {"request_timeout": float("nan")},
        {"detach_ttl": -1.0},
        {"reconnect_timeout": float("nan")},
    ],
)
def test_a_bad_time_of_a_connection_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        remex_client.connect("unix:///nowhere", **options)


async def test_a_silent_server_is_disconnected() -> None:
    def answer(method: str, params: dict[str, Any]) -> Any:
        return None if method == "environment/status" and server.connections == 1 else {}

    async with ScriptedServer(answer) as server:
        options: dict[str, Any] = {"keep_alive_interval": 0.05, "keep_alive_timeout": 0.05}
        async with remex_client.connect(server.url, **options) as host:
            await server.connected(2)
            assert host.disconnects == 1


async def test_requests_are_repeated_in_order_or_interrupted() -> None:
    def answer(method: str, params: dict[str, Any]) -> Any:
        return None if server.connections == 1 and method.startswith(("fs/", "process/")) else {"hash": "h"}

    async with ScriptedServer(answer) as server, remex_client.connect(server.url) as host:
        hashes = [asyncio.create_task(host.files.hash(f"/{n}")) for n in range(5)]
        removal = asyncio.create_task(host.files.remove("/x"))
        await server.received_message("the removal", lambda message: message.get("method") == "fs/remove")
        server.disconnect()
        with pytest.raises(RequestInterrupted) as interrupted:
            await within(10, "the removal", removal)
        assert (interrupted.value.is_retryable, interrupted.value.may_have_happened) == (True, True)
        assert await within(10, "the hashes", asyncio.gather(*hashes)) == ["h"] * 5
        asked = [m["params"]["path"] for m in server.received if m.get("method") == "fs/hash"]
        assert asked == [f"/{n}" for n in range(5)] * 2


async def test_a_cancelled_request_is_cancelled_on_the_server() -> None:
    async with ScriptedServer(lambda method, params: None) as server:
        host = await remex_client.connect(server.url)
        call = asyncio.create_task(host.call("fs/hash", {"path": "/x"}))
        request = await server.received_message("the request", lambda m: m.get("method") == "fs/hash")
        call.cancel()
        cancel = {"method": "request/cancel", "params": {"id": request["id"]}}
        await server.received_message("the cancel", lambda message: message == cancel)
        await host.close()


async def test_a_request_times_out() -> None:
    async with ScriptedServer(lambda method, params: None) as server:
        host = await remex_client.connect(server.url, request_timeout=0.05)
        with pytest.raises(TimedOutError):
            await host.call("fs/hash", {"path": "/x"})
        await host.close()


async def test_a_limit_does_not_replace_the_error_of_the_work() -> None:
    async def work() -> None:
        raise TimedOutError("the work itself", is_call=True)

    with pytest.raises(TimedOutError, match=r"^the work itself$") as error:
        await limited(work(), 10, "too late after")
    assert error.value.may_have_happened
    with pytest.raises(TimedOutError, match=r"^too late after 0\.01 s$"):
        await limited(asyncio.Event().wait(), 0.01, "too late after")


async def test_a_request_that_is_too_long_for_a_stream_is_a_usage_error() -> None:
    def welcome(usual: dict[str, Any]) -> dict[str, Any]:
        return {**usual, "limits": {"messageBytes": 1000}}

    async with ScriptedServer(lambda method, params: {}, welcome) as server, remex_client.connect(server.url) as host:
        with pytest.raises(UsageError, match="the server accepts 1000"):
            await host.http.stream("POST", "http://h/", body=bytes(1000))


async def test_too_many_invalid_messages_end_the_session() -> None:
    async with ScriptedServer(lambda method, params: {}) as server:
        host = await remex_client.connect(server.url)
        changes = 0
        while host.state.state != "lost":
            if host.state.state == "connected":
                server.send("nonsense")
            await within(10, "a change", host.state_changed())
            changes += 1
        assert host.state.lost is not None
        assert host.state.lost.reason == "protocol"
        assert host.disconnects == 8


@pytest.mark.parametrize("length", [0, 1, 3, 125, 126, 65535, 65536, 70001])
def test_frames_of_a_client_are_masked(length: int) -> None:
    payload = bytes(number % 251 for number in range(length))
    framed = frame(1, payload)
    extra = 0 if length < 126 else 2 if length < 65536 else 8
    short = length if extra == 0 else 126 if extra == 2 else 127
    assert (framed[0], framed[1]) == (0x81, 0x80 | short)
    assert extra == 0 or int.from_bytes(framed[2 : 2 + extra], "big") == length
    key, masked = framed[2 + extra : 6 + extra], framed[6 + extra :]
    assert bytes(byte ^ key[index % 4] for index, byte in enumerate(masked)) == payload


def test_bytes_are_sent_as_base64() -> None:
    message = {"id": 1, "method": "m", "params": {"a": "é", "b": b"hi\n", "c": b""}}
    assert json.loads(encode(message)) == {"id": 1, "method": "m", "params": {"a": "é", "b": "aGkK", "c": ""}}
    assert json.loads(encode({"id": 1, "method": "m", "params": {"b": b"a"}}))["params"] == {"b": "YQ=="}
    for invalid in ("\udcff", float("nan"), object()):
        with pytest.raises(UsageError):
            encode({"id": 1, "method": "m", "params": {"a": invalid}})


class Collector:
    """A handler that keeps the messages of a link."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def on_message(self, buffer: bytearray, start: int, end: int) -> None:
        self.messages.append(bytes(buffer[start:end]))

    def on_binary(self, buffer: bytearray, start: int, end: int) -> None:
        raise AssertionError("binary messages are not enabled")

    def on_pong(self) -> None:
        pass

    def take_notes(self) -> Iterator[bytes]:
        return iter(())


async def test_a_fragmented_message_of_a_websocket_is_joined() -> None:
    link, collector = Link(True), Collector()
    link._is_upgrading, link.handler = False, collector
    frames = b"\x01\x03abc" + b"\x89\x01p" + b"\x00\x02de" + b"\x80\x01f" + b"\x81\x7e\x01\x00" + b"x" * 256
    for at in range(len(frames)):
        link.feed(frames[at : at + 1])
    assert collector.messages == [b"abcdef", b"x" * 256]
    assert link._pong == b"p"
    assert not link.closed.done()
    link.feed(b"\x81\x80")
    assert link.closed.result().endswith("it is masked")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, Path]]:
    """A server with TLS and a token."""
    directory = tmp_path_factory.mktemp("certs")
    for arguments in (["server", "localhost", "127.0.0.1"], ["client", "me"]):
        subprocess.run([remex(), "cert", "new", *arguments, "--dir", str(directory)], check=True, capture_output=True)
    token = subprocess.run([remex(), "token", "new"], check=True, capture_output=True, text=True).stdout.split()[0]
    tokens = directory / "tokens"
    tokens.write_text(token + "\n")
    tokens.chmod(0o600)
    arguments = ["--tls-cert", str(directory / "localhost.pem"), "--tls-key", str(directory / "localhost.key")]
    arguments += ["--ws-auth", "capability-token", "--ws-token-file", str(tokens)]
    server = Server(*arguments, websocket="wss")
    yield server, token, directory
    server.stop()


async def test_tls_with_a_token(secure: tuple[Server, str, Path]) -> None:
    server, token, directory = secure
    ca = directory / "ca.pem"
    async with remex_client.connect(server.websocket, token=token, ca=ca) as host:
        assert (await host.run("head -c 2000000 /dev/zero | wc -c")).text.strip() == "2000000"
        assert len((await host.run("head -c 2000000 /dev/zero")).stdout) == 2_000_000
        result = await host.run(["cat"], input=bytes(2_000_000))
        assert len(result.stdout) == 2_000_000
    with pytest.raises(UnauthorizedError, match="requires a token"):
        await remex_client.connect(server.websocket, ca=ca)
    with pytest.raises(UnauthorizedError, match="refused the token"):
        await remex_client.connect(server.websocket, ca=ca, token="wrong")
    with pytest.raises(UnreachableError, match="certificate"):
        await remex_client.connect(server.websocket, token=token)


async def test_a_token_can_come_from_a_function(secure: tuple[Server, str, Path]) -> None:
    server, token, directory = secure
    asked = 0

    async def fresh() -> str:
        nonlocal asked
        asked += 1
        return token

    for ask in (lambda: token, fresh):
        async with remex_client.connect(server.websocket, token=ask, ca=directory / "ca.pem") as host:
            assert (await host.run(["true"])).ok
    assert asked == 1
    with pytest.raises(UnauthorizedError, match="refused the token"):
        await remex_client.connect(server.websocket, ca=directory / "ca.pem", token=lambda: "wrong")
    nothing: Any = lambda: None  # noqa: E731
    with pytest.raises(TypeError):
        await remex_client.connect(server.websocket, ca=directory / "ca.pem", token=nothing)


async def test_a_server_is_recognized_by_its_key(secure: tuple[Server, str, Path]) -> None:
    server, token, directory = secure
    key = ["openssl", "x509", "-in", str(directory / "localhost.pem"), "-noout", "-pubkey"]
    pem = subprocess.run(key, check=True, capture_output=True, text=True).stdout
    digest = hashlib.sha256(base64.b64decode("".join(pem.splitlines()[1:-1]))).digest()
    for pin in (f"sha256:{digest.hex()}", digest.hex().upper(), "sha256//" + base64.b64encode(digest).decode()):
        async with remex_client.connect(server.websocket, token=token, pin=pin) as host:
            assert (await host.run(["true"])).ok
    with pytest.raises(UnreachableError, match=f"its key is `sha256:{digest.hex()}`"):
        await remex_client.connect(server.websocket, token=token, pin="00" * 32)
    for wrong in ("sha256:12", "sha256//AA==", ""):
        with pytest.raises(UsageError, match="pin"):
            remex_client.connect(server.websocket, token=token, pin=wrong)


async def test_tls_with_a_client_certificate(secure: tuple[Server, str, Path]) -> None:
    _, _, directory = secure
    files = {"--tls-cert": "localhost.pem", "--tls-key": "localhost.key", "--tls-client-ca": "ca.pem"}
    server = Server(*(word for flag, name in files.items() for word in (flag, str(directory / name))), websocket="wss")
    try:
        mine = (str(directory / "me.pem"), str(directory / "me.key"))
        async with remex_client.connect(server.websocket, ca=directory / "ca.pem", client_cert=mine) as host:
            assert (await host.sessions())[0].identity != "owner"
        with pytest.raises(UnreachableError):
            await remex_client.connect(server.websocket, ca=directory / "ca.pem")
    finally:
        server.stop()


async def test_a_header_with_a_line_end_is_refused(server: Server) -> None:
    with pytest.raises(UsageError):
        await remex_client.connect(server.websocket, token="a\r\nb: c")


async def test_a_refusal_has_the_reason_of_the_server(server: Server) -> None:
    reason = r"refuses this client \(status 403\): requests with this `Origin` are refused; allow it with"
    with pytest.raises(UnauthorizedError, match=reason):
        await remex_client.connect(server.websocket, headers={"Origin": "https://evil.example"})
    with pytest.raises(UnreachableError, match="421 Misdirected Request`: the `Host` of this request is no name of"):
        await remex_client.connect(server.websocket, headers={"Host": "evil.example"})


async def test_unknown_members_of_the_handshake_are_ignored(server: Server) -> None:
    async with remex_client.connect(server.unix) as host:
        assert host.welcome["server"]["name"] == "remex"
        assert json.dumps(await host.info())


@pytest.mark.parametrize(
    "welcome",
    [
        lambda welcome: {"error": None},
        lambda welcome: None,
        lambda welcome: [],
        lambda welcome: {},
        lambda welcome: {**welcome, "capabilities": {"enabled": 5}},
        lambda welcome: {**welcome, "capabilities": {"enabled": [[1]]}},
        lambda welcome: {**welcome, "capabilities": "all"},
        lambda welcome: {**welcome, "limits": [1]},
        lambda welcome: {**welcome, "limits": {"messageBytes": "a"}},
        lambda welcome: {**welcome, "limits": {"retainBytes": "b"}},
        lambda welcome: {**welcome, "environmentInfo": "x"},
        lambda welcome: {**welcome, "environmentInfo": {"cwd": 5}},
    ],
)
async def test_a_malformed_welcome_breaks_the_protocol(welcome: Callable[[dict[str, Any]], Any]) -> None:
    async with ScriptedServer(lambda method, params: {}, welcome) as server:
        with pytest.raises(ProtocolError, match="initialize"):
            await within(10, "the refusal", remex_client.connect(server.url)._connect())
        await within(10, "the end of the connection", server.left.wait())


@pytest.mark.parametrize("result", [{"error": None}, [1], "text", {"pid": "one"}])
async def test_a_malformed_answer_breaks_the_protocol_and_nothing_else(result: Any) -> None:
    def answer(method: str, params: dict[str, Any]) -> Any:
        if method == "process/read":
            return {"chunks": [], "nextSeq": 1}
        return result if method in ("process/start", "process/list", "fs/hash") else {}

    async with ScriptedServer(answer) as server, remex_client.connect(server.url) as host:
        with pytest.raises(ProtocolError):
            await within(10, "the start", host.start(["x"]))
        await server.received_message("the end", lambda sent: sent["method"] == "process/terminate")
        with pytest.raises(ProtocolError):
            await within(10, "the list", host.processes())
        with pytest.raises(ProtocolError):
            await within(10, "the hash", host.files.hash("/file"))
        assert await within(10, "an answer", host.call("environment/status")) == {}
        assert host.disconnects == 0


async def test_empty_reads_end_with_an_error() -> None:
    def answer(method: str, params: dict[str, Any]) -> Any:
        return {"chunks": [], "nextSeq": 1, "exited": False, "closed": False} if method == "process/read" else {}

    async with ScriptedServer(answer) as server, remex_client.connect(server.url) as host:
        process = await host.start(["x"])
        params = {"processId": process.id, "seq": 5, "stream": "stdout", "chunk": ""}
        server.send(json.dumps({"method": "process/output", "params": params}))
        with pytest.raises(ProtocolError, match="lack the event after 0"):
            await within(10, "the failure", process.wait())
        assert await within(10, "an answer", host.call("environment/status")) == {}


UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"


@pytest.mark.parametrize(
    ("is_websocket", "pieces"),
    [(False, [b"early\n"]), (True, [UPGRADED + b"\x81\x05early"]), (True, [UPGRADED, b"\x81\x05ea", b"rly"])],
)
async def test_messages_that_arrive_before_the_handler_are_not_lost(is_websocket: bool, pieces: list[bytes]) -> None:
    link, handler = Link(is_websocket), Collector()
    for piece in pieces:
        link.feed(piece)
    link.attach(handler)
    assert handler.messages == [b"early"]


async def test_a_program_that_greets_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError) as failure:
        await within(10, "the refusal", remex_client.connect(["sh", "-c", "echo Welcome; exec cat"])._connect())
    assert "greeting" in (failure.value.hint or "")


async def test_a_long_frame_takes_memory_only_as_it_arrives() -> None:
    link, handler = Link(is_websocket=True), Collector()
    link.feed(UPGRADED)
    link.attach(handler)
    link.feed(b"\x81\x7f" + ((1 << 30) - 1).to_bytes(8, "big"))
    assert len(link._buffer) <= 1 << 20

    link, message = Link(is_websocket=True), bytes(5_000_000)
    link.feed(UPGRADED)
    link.attach(handler)
    whole = b"\x81\x7f" + len(message).to_bytes(8, "big") + message
    for at in range(0, len(whole), 100_000):
        link.feed(whole[at : at + 100_000])
    assert handler.messages == [message]


async def test_a_server_of_the_base_dialect_gets_uris() -> None:
    def welcome(usual: dict[str, Any]) -> dict[str, Any]:
        # This is all that such a server says.
        return {"sessionId": usual["sessionId"], "environmentInfo": {"shell": {"name": "sh", "path": "/bin/sh"}}}

    async with ScriptedServer(lambda method, params: {}, welcome) as server:
        async with remex_client.connect(server.url) as host:
            await host.files.copy("/a b", "file:///c")
        copied = next(message for message in server.received if message.get("method") == "fs/copy")
        assert (copied["params"]["sourcePath"], copied["params"]["destinationPath"]) == ("file:///a%20b", "file:///c")
