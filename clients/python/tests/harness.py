"""What several tests need: the server, a scripted server, and a network that fails."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[3]
T = TypeVar("T")


def remex() -> str:
    """Returns the path of the server."""
    candidates = [
        os.environ.get("REMEX_BIN"),
        str(ROOT / "target" / "debug" / "remex"),
        str(ROOT / "target" / "release" / "remex"),
        shutil.which("remex"),
    ]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise RuntimeError("no `remex`: set REMEX_BIN, build it with `cargo build`, or put it into PATH")


def vectors(name: str) -> list[dict[str, Any]]:
    """Reads a file of test vectors."""
    lines = (ROOT / "spec" / "vectors" / name).read_text().splitlines()
    return [json.loads(line) for line in lines if line]


async def within(seconds: float, what: str, awaitable: Awaitable[T]) -> T:
    """Waits with a deadline that says what was awaited."""
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except asyncio.TimeoutError:
        raise AssertionError(f"{what} took longer than {seconds} s") from None


class Server:
    """A `remex serve` with a unix socket and a WebSocket, and with TLS and a token if asked for."""

    def __init__(self, *extra: str, websocket: str = "ws", state: bool = False) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="remex-"))
        self.socket = self.directory / "s"
        args = ["serve", "--listen", f"unix://{self.socket}", "--listen", f"{websocket}://127.0.0.1:0", *extra]
        if state:
            args += ["--state", str(self.directory / "state")]
        self._args = [remex(), *args]
        self._process = self._start()
        assert self._process.stdout is not None
        urls = [self._process.stdout.readline().strip() for _ in range(2)]
        if not all(urls):
            assert self._process.stderr is not None
            raise RuntimeError(f"`remex serve` did not start: {self._process.stderr.read()}")
        self.unix, self.websocket = sorted(urls)

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def restart(self) -> None:
        """Kills the server, and starts another one with the same state."""
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        """Kills the server."""
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        """Stops the server."""
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self.directory, ignore_errors=True)


class Web(BaseHTTPRequestHandler):
    """A web server that returns what it gets, a status, or zeros."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        _, kind, *rest = self.path.split("/")
        status = int(rest[0]) if kind == "status" else 200
        if kind == "status":
            body = f"status {status}".encode()
        elif kind == "zeros":
            body = bytes(int(rest[0]))
        self.send_response(status)
        self.send_header("x-method", self.command)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


class Proxy:
    """A proxy to a unix socket, or to a port, whose connections end after some bytes, from a seed.

    `budget` gives how many bytes the next connection carries, in both directions together; None is no limit.
    """

    def __init__(self, target: str, budget: Callable[[], int | None]) -> None:
        self._target = target
        self._budget = budget
        self.disconnects = 0
        self.is_recording = False
        #: What clients and servers have sent since then.
        self.forth, self.back = bytearray(), bytearray()
        #: While it is not set, connections carry nothing.
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def disconnect(self) -> None:
        """Ends all connections now."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await self.is_open.wait()
        if self._target.startswith("unix://"):
            server, forth = await asyncio.open_unix_connection(self._target[7:])
        else:
            host, _, port = self._target.rpartition("/")[2].partition(":")
            server, forth = await asyncio.open_connection(host, int(port))
        left = self._budget()
        self._writers |= {back, forth}

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
            nonlocal left
            while data := await reader.read(64 << 10):
                if left is not None:
                    data = data[: max(left, 0)]
                    left -= len(data)
                if self.is_recording:
                    record += data
                writer.write(data)
                if left is not None and left <= 0:
                    self.disconnects += 1
                    # What is written so far may or may not arrive.
                    return
                await writer.drain()

        pumps = [
            asyncio.ensure_future(pump(client, forth, self.forth)),
            asyncio.ensure_future(pump(server, back, self.back)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            for writer in (back, forth):
                self._writers.discard(writer)
                writer.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)


@asynccontextmanager
async def proxied(target: str, budget: Callable[[], int | None] = lambda: None) -> AsyncIterator[tuple[str, Proxy]]:
    """Puts a proxy before a server; gives its URL."""
    proxy = Proxy(target, budget)
    if target.startswith("unix://"):
        directory = tempfile.mkdtemp(prefix="remex-")
        listener: asyncio.AbstractServer = await asyncio.start_unix_server(proxy.serve, f"{directory}/p")
        url = f"unix://{directory}/p"
    else:
        listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield url, proxy
    finally:
        listener.close()
        proxy.disconnect()


def budgets(seed: int, low: int, high: int) -> Callable[[], int]:
    """Gives random budgets from a seed."""
    generator = random.Random(seed)
    return lambda: generator.randint(low, high)


#: What a `welcome` returns for a handshake that gets no answer.
SILENCE = object()


class ScriptedServer:
    """A server on a unix socket that a test plays. `answer` gives the result of a request.

    `welcome` makes another answer to the handshake of the usual one.
    """

    def __init__(
        self, answer: Callable[[str, dict[str, Any]], Any], welcome: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        self._answer = answer
        self._welcome = welcome
        #: Set when a client has left.
        self.left = asyncio.Event()
        self.directory = tempfile.mkdtemp(prefix="remex-")
        self.url = f"unix://{self.directory}/s"
        self.connections = 0
        self.received: list[dict[str, Any]] = []
        self._arrived = asyncio.Condition()
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.AbstractServer | None = None

    async def __aenter__(self) -> ScriptedServer:
        self._listener = await asyncio.start_unix_server(self._serve, f"{self.directory}/s", limit=1 << 24)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.disconnect()
        shutil.rmtree(self.directory)

    async def received_message(self, what: str, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Waits for a message of the client."""

        async def wait() -> dict[str, Any]:
            async with self._arrived:
                await self._arrived.wait_for(lambda: any(matches(message) for message in self.received))
                return next(message for message in self.received if matches(message))

        return await within(10, what, wait())

    async def connected(self, number: int) -> None:
        """Waits until so many connections are initialized."""

        def is_so() -> bool:
            return [message.get("method") for message in self.received].count("initialized") >= number

        async def wait() -> None:
            async with self._arrived:
                await self._arrived.wait_for(is_so)

        await within(10, f"connection {number}", wait())

    def send(self, text: str) -> None:
        assert self._writer is not None
        self._writer.write(text.encode() + b"\n")

    def send_binary(self, message: bytes) -> None:
        assert self._writer is not None
        self._writer.write(b"\0" + len(message).to_bytes(4, "big") + message)

    def disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writer = writer
        while (message := await _next_message(reader)) is not None:
            async with self._arrived:
                self.received.append(message)
                self._arrived.notify_all()
            if "id" in message and "method" in message:
                result = self._result(message)
                if result is not None:
                    writer.write(json.dumps({"id": message["id"], **result}).encode() + b"\n")
        self.left.set()

    def _result(self, message: dict[str, Any]) -> dict[str, Any] | None:
        if message["method"] == "initialize":
            enabled = ["processGap", "cancel", "consumed", "acks"]
            result = {
                "sessionId": "s",
                "capabilities": {"enabled": enabled, "available": enabled},
                "server": {"name": "scripted", "version": "0"},
            }
            answer = result if self._welcome is None else self._welcome(result)
            if answer is SILENCE:
                return None
        else:
            answer = self._answer(message["method"], message.get("params") or {})
            if answer is None:
                return None
        return answer if isinstance(answer, dict) and "error" in answer else {"result": answer}


async def _next_message(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Returns the next message of a client, with bytes where it attached some; None after the last."""
    try:
        if (first := await reader.readexactly(1)) != b"\0":
            text, attached = first + await reader.readuntil(b"\n"), None
        else:
            length = int.from_bytes(await reader.readexactly(4), "big")
            whole = await reader.readexactly(length)
            assert whole[:4] == b"\2\0\0\0"
            end = 8 + int.from_bytes(whole[4:8], "big")
            text, attached = whole[8:end], whole[end:]
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    message: dict[str, Any] = json.loads(text)
    if attached is not None:
        params = message["params"]
        for name in {"chunk", "dataBase64", "bodyBase64", "targetBase64"} & params.keys():
            offset, length = params[name]
            params[name] = attached[offset : offset + length]
    return message
