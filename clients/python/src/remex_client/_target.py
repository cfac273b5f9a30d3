"""Where a server is, and how to connect to it. Start at `dial`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import inspect
import os
import shlex
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote, urlsplit

from . import _unix_server
from ._errors import RemexError, UnauthorizedError, UnreachableError, UsageError
from ._link import Link
from ._pin import parse_pin, pin_of

_PORTS = {"ws": 80, "wss": 443}

#: How much of the stderr of a program an error quotes.
_STDERR_BYTES = 4096

#: How long a program may take to end when its connection is closed.
_PROGRAM_GRACE = 2.0

#: How much of the reason for a refusal is read, and for how long; without a reason, an error has the status.
_MAX_REASON = 1024
_REASON_SECONDS = 1.0


#: A token, or a function that is asked for one before each connection.
Token = str | Callable[[], str | Awaitable[str]]


@dataclass(frozen=True)
class Unix:
    """A unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True)
class WebSocket:
    """A WebSocket, with TLS if the URL begins with `wss://`."""

    url: str
    token: Token | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    ssl_context: ssl.SSLContext | None = None
    #: The digest of the public key that the server must have.
    pin: bytes | None = None

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class Program:
    """A program that speaks the protocol on its standard streams, such as `ssh host remex proxy`."""

    argv: tuple[str, ...]
    #: Variables in addition to those of this program.
    env: Mapping[str, str] | None = None
    cwd: str | None = None

    def __str__(self) -> str:
        return f"`{shlex.join(self.argv)}`"


Target = Unix | WebSocket | Program


def parse(
    target: str | Sequence[str] | Target,
    *,
    token: Token | None = None,
    headers: Mapping[str, str] | None = None,
    pin: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    client_cert: tuple[str, str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Target:
    """Returns the target that an argument of `connect` stands for."""
    if isinstance(target, Unix | WebSocket | Program):
        return target
    if not isinstance(target, str):
        if not target:
            raise UsageError("cannot connect: the command is empty")
        return Program(tuple(target))
    if target.startswith("/"):
        return Unix(target)
    url = urlsplit(target)
    if url.scheme == "unix" and not url.netloc and url.path.startswith("/"):
        return Unix(unquote(url.path))
    if url.scheme == "ssh" and url.hostname and not url.hostname.startswith("-") and url.path in ("", "/"):
        return _ssh(url.username, url.hostname, url.port)
    if url.scheme in _PORTS and url.hostname:
        if url.scheme == "wss" and ssl_context is None:
            try:
                ssl_context = ssl.create_default_context(cafile=ca)
                if pin is not None and ca is None:
                    # The pin, not the name, identifies the server.
                    ssl_context.check_hostname, ssl_context.verify_mode = False, ssl.CERT_NONE
                if client_cert is not None:
                    ssl_context.load_cert_chain(*client_cert)
            except OSError as error:
                raise UsageError(f"cannot use the certificates for `{target}`: {error}") from error
        if pin is not None and url.scheme != "wss":
            raise UsageError(f"cannot use a pin for `{target}`: it is not encrypted", "give a `wss://` address")
        return WebSocket(target, token, dict(headers or {}), ssl_context, None if pin is None else parse_pin(pin))
    raise UsageError(
        f"cannot use `{target}` as a server",
        "give `unix:///path`, `ws://host:port`, `wss://host:port`, `ssh://host`, the name of an environment, "
        "or a command as a list",
    )


def _ssh(user: str | None, host: str, port: int | None) -> Program:
    where = f"{user}@{host}" if user else host
    options = ("-p", str(port)) if port else ()
    return Program(("ssh", "-T", "-oBatchMode=yes", *options, "--", where, "remex", "proxy"))


async def dial(target: Target) -> Connection:
    """Opens a connection."""
    loop = asyncio.get_running_loop()
    try:
        if isinstance(target, Unix):
            transport, link = await loop.create_unix_connection(lambda: Link(False), target.path)
            try:
                _unix_server.check(transport.get_extra_info("socket"), target.path)
            except BaseException:
                link.abort("the server cannot be trusted")
                raise
            return Connection(link)
        if isinstance(target, WebSocket):
            return Connection(await _dial_websocket(target))
        link = Link(False)
        _, program = await loop.subprocess_exec(
            lambda: _ProgramProtocol(link, target),
            *target.argv,
            # In a session of its own it cannot prompt on our terminal, and Ctrl-C does not reach it.
            start_new_session=True,
            cwd=target.cwd,
            env=None if target.env is None else {**os.environ, **target.env},
        )
        return Connection(link, program)
    except RemexError:
        # Some are an `OSError` as well.
        raise
    except OSError as error:
        raise UnreachableError(f"cannot connect to {target}: {error}") from error


class Connection:
    """A link, and the program behind it, if there is one."""

    def __init__(self, link: Link, program: _ProgramProtocol | None = None) -> None:
        self.link = link
        self._program = program

    async def failure(self, reason: str) -> str:
        """Returns why the connection ended, with the last words of the program."""
        return reason if self._program is None else await self._program.failure(reason)

    async def end(self) -> None:
        """Ends the connection and its program."""
        self.link.abort("the connection was closed")
        if self._program is not None:
            await self._program.end()


async def _dial_websocket(target: WebSocket) -> Link:
    url = urlsplit(target.url)
    loop = asyncio.get_running_loop()
    port = url.port or _PORTS[url.scheme]
    tls = target.ssl_context if url.scheme == "wss" else None
    transport, link = await loop.create_connection(lambda: Link(True), url.hostname or "", port, ssl=tls)
    try:
        if target.pin is not None:
            _check_pin(transport.get_extra_info("ssl_object"), target)
        return await _upgrade(link, target, port)
    except BaseException:
        link.abort("the WebSocket handshake failed")
        raise


async def _upgrade(link: Link, target: WebSocket, port: int) -> Link:
    url = urlsplit(target.url)
    key = base64.b64encode(os.urandom(16)).decode()
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    fields = {
        "Host": f"{host}:{port}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
        **target.headers,
    }
    if (token := await _token(target)) is not None:
        fields["Authorization"] = f"Bearer {token}"
    for name, value in fields.items():
        if not (name + value).isprintable() or not (name + value).isascii():
            raise UsageError(f"cannot send the header `{name}`: it has characters that are not printable ASCII")
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    link.write_raw(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
    response = (await link.upgraded).decode("latin-1")
    status_line, *lines = response.split("\r\n")
    words = status_line.split(" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    answers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    said = "" if status == 101 else await _reason(link, answers)
    if status in (401, 403):
        # If only the token is missing, the reason says no more than the status.
        if said and (status == 403 or "; " in said):
            raise UnauthorizedError(f"{target} refuses this client (status {status}): {said}", status)
        what = "requires a token" if token is None else "refused the token"
        raise UnauthorizedError(f"{target} {what} (status {status})", status)
    digest = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
    if status != 101 or answers.get("sec-websocket-accept") != base64.b64encode(digest).decode():
        why = f": {said}" if said else ""
        raise UnreachableError(f"cannot connect to {target}: the server answered `{status_line}`{why}")
    return link


async def _token(target: WebSocket) -> str | None:
    """Returns the token, or asks the function for it."""
    if not callable(target.token):
        return target.token
    given = target.token()
    token = await given if inspect.isawaitable(given) else given
    if not isinstance(token, str):
        raise TypeError(f"the function for the token returned a value of the type `{type(token).__name__}`")
    return token


def _check_pin(tls: ssl.SSLObject | None, target: WebSocket) -> None:
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    try:
        found = pin_of(certificate or b"")
    except (ValueError, IndexError) as error:
        raise UnreachableError(f"cannot connect to {target}: its certificate cannot be read") from error
    if found != target.pin:
        raise UnreachableError(
            f"cannot trust {target}: its key is `sha256:{found.hex()}`, and not the one of the pin",
            "if the key was changed on purpose, use its new pin",
        )


async def _reason(link: Link, fields: dict[str, str]) -> str:
    """Returns the first line of the reason for a refusal; empty if there is none, or if it is not printable."""
    length = fields.get("content-length", "")
    if not fields.get("content-type", "").startswith("text/plain") or not length.isdecimal():
        return ""
    body = await link.body(min(int(length), _MAX_REASON), _REASON_SECONDS)
    line = body.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    return line if line.isprintable() and "\ufffd" not in line else ""


class _ProgramProtocol(asyncio.SubprocessProtocol):
    """Joins the standard streams of a program to a link."""

    def __init__(self, link: Link, target: Program) -> None:
        self._link = link
        self._target = target
        self._stderr = b""
        self._exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of other event loops, such as uvloop, are not instances of asyncio's classes.
        self._transport = cast(asyncio.SubprocessTransport, transport)
        stdin = self._transport.get_pipe_transport(0)
        assert stdin is not None
        self._link.connection_made(stdin)

    def pause_writing(self) -> None:
        self._link.pause_writing()

    def resume_writing(self) -> None:
        self._link.resume_writing()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._link.feed(data)
        else:
            self._stderr = (self._stderr + data)[-_STDERR_BYTES:]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._link.eof_received()

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)

    async def failure(self, reason: str) -> str:
        """Returns how the program ended, and what it wrote to stderr."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._exited), _PROGRAM_GRACE)
        status = self._transport.get_returncode() if self._transport is not None else None
        said = self._stderr.decode("utf-8", "replace").strip()
        if status is None:
            return f"{reason}: {said}" if said else reason
        return f"{self._target} exited with status {status}" + (f": {said}" if said else "")

    async def end(self) -> None:
        """Waits for the program, whose input has ended, and kills it if that takes too long."""
        if self._transport is None:
            return
        try:
            await asyncio.wait_for(asyncio.shield(self._exited), _PROGRAM_GRACE)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()
        finally:
            self._transport.close()
