"""The remote host: processes, files and sessions. Start at `connect`."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from . import models
from ._codec import StrPath
from ._environments import Environment, find, is_name
from ._errors import (
    ProtocolError,
    RefusedError,
    RemexError,
    TimedOutError,
    UsageError,
    decoding,
    is_kind,
    is_unknown_process,
)
from ._event import optional_number
from ._files import Files
from ._http import Http
from ._observe import ObservedEvents, SessionInfo
from ._options import ConnectionState, Options, SessionChoice
from ._process import Process, ProcessInfo, ProcessRef
from ._queue import AFTER_EVERYTHING, EventQueue, ids_of
from ._result import Collector, OutputCallback, Result
from ._session import Session
from ._start import DEVNULL, PIPE, Command, StartOptions, Tty, start_request, wants_stdin
from ._stdin import Input, check_input
from ._target import Program, Target, Token, Unix, WebSocket, parse
from .agent import Agent, Limits

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: How often to try to attach or start while others start and remove the same process.
_ATTACH_TRIES = 8


def connect(
    target: str | Sequence[str] | Target,
    *,
    session: SessionChoice = None,
    token: Token | None = None,
    ca: str | os.PathLike[str] | None = None,
    pin: str | None = None,
    client_cert: tuple[str, str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    detach_ttl: float | None = None,
    client_name: str = "remex-python",
    connect_timeout: float | None = None,
    connect_retry: float = 0.0,
    handshake_timeout: float | None = None,
    request_timeout: float | None = None,
    reconnect_timeout: float | None = None,
    keep_alive_interval: float = 15.0,
    keep_alive_timeout: float = 10.0,
) -> Connecting:
    """Connects to a server; await it, or use it in `async with`.

        async with remex_client.connect("ws://127.0.0.1:7070") as host:
            print((await host.run(["uname", "-a"])).text)

    `target` is `unix:///path` or `/path`, `ws://host:port`, `wss://host:port`, `ssh://user@host:port` (which runs
    `ssh … remex proxy`), a program that speaks the protocol, as a list: `["remex", "serve", "--listen", "stdio"]`, or
    the name of an environment of the program `remex`, from `~/.config/remex/environments.toml` or `REMEX_URL`; `local`
    is your own server on this machine.

    For `wss://`, `ca` is a file with the certificates to trust, `pin` the digest of the public key of the server, and
    `client_cert` the files of a certificate and its key; or give an `ssl_context`. `token` is sent as a bearer token; a
    function, also an asynchronous one, is asked for it before each connection.

    `session` is the name of a session to resume, or to create if there is none, or `Resume(id)` for one that must
    exist, with `takeover=True` also if another client holds it. Without it, the session is a new one without a name.
    Leaving `async with` ends a session that has no name, with its processes; one that was named or resumed survives for
    its `detach_ttl`.

    Times are in seconds. `connect_timeout` and `handshake_timeout` (10) limit one attempt, `connect_retry` is how long
    to try again if the first connection fails, and `reconnect_timeout` (60) how long to try after a disconnect.
    """
    if is_name(target):
        if any(value is not None for value in (token, ca, pin, client_cert, ssl_context, headers)):
            what = f"the environment `{target}` says how to connect to it"
            raise UsageError(f"cannot use a token, certificates or headers here: {what}", "give the address instead")
        environment = find(str(target))
    else:
        where = parse(
            target, token=token, headers=headers, ca=ca, pin=pin, client_cert=client_cert, ssl_context=ssl_context
        )
        environment = Environment(where)

    def first(given: float | None, configured: float | None, usual: float) -> float:
        return given if given is not None else configured if configured is not None else usual

    options = Options(
        client_name=client_name,
        session=session,
        detach_ttl=detach_ttl,
        connect_timeout=first(connect_timeout, environment.connect_timeout, 10.0),
        connect_retry=connect_retry,
        handshake_timeout=first(handshake_timeout, environment.handshake_timeout, 10.0),
        request_timeout=request_timeout,
        reconnect_timeout=first(reconnect_timeout, environment.reconnect_timeout, 60.0),
        keep_alive_interval=keep_alive_interval,
        keep_alive_timeout=keep_alive_timeout,
    )
    return Connecting(environment.target, options)


class Connecting:
    """A connection to be made: await it, or use it in `async with`."""

    def __init__(self, target: Target, options: Options) -> None:
        self._target = target
        self._options = options
        self._host: Host | None = None

    def __await__(self) -> Generator[Any, None, Host]:
        return self._connect().__await__()

    async def _connect(self) -> Host:
        session = Session(self._target, self._options)
        await session.start()
        return Host(session)

    async def __aenter__(self) -> Host:
        self._host = await self._connect()
        return self._host

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._host is not None
        await self._host.__aexit__(kind, error, trace)


class Host:
    """A remote host, reached through a session with its server.

    After a disconnect it reconnects and resumes the session: calls and streams notice a pause, unless a call cannot be
    repeated (`RequestInterrupted`) or the session is lost (`SessionLostError`).
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        #: One lock per name, so that tasks that attach or start do not race.
        self._naming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.files = Files(session)
        self.http = Http(session)

    def __repr__(self) -> str:
        return f"<Host {self._session.target} {self._session.state.state}>"

    async def __aenter__(self) -> Host:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session.options.session is not None or self._session.lost is not None:
            await self.close()
            return
        try:
            await self.end()
        except RemexError:
            # An error raised in the block says more than one of the end.
            if error is None:
                raise

    # The session.

    @property
    def session_id(self) -> str:
        """The id of the session, for `Resume(id)`."""
        return str(self._session.welcome.get("sessionId") or "")

    @property
    def welcome(self) -> models.InitializeResult:
        """The answer to the handshake: name and version of the server, capabilities, limits."""
        return self._session.welcome  # type: ignore[return-value]

    @property
    def state(self) -> ConnectionState:
        """Whether the client is connected."""
        return self._session.state

    @property
    def disconnects(self) -> int:
        """How often the connection was lost."""
        return self._session.disconnects

    async def state_changed(self) -> ConnectionState:
        """Waits for the next change of `state`."""
        return await self._session.state_changed()

    async def close(self) -> None:
        """Closes the connection; the session with its processes survives for its time to live (80 s by default)."""
        await self._session.close()

    async def end(self) -> None:
        """Ends the session with all its processes, and closes the connection."""
        await self._session.end()

    async def call(self, method: str, params: Mapping[str, object] | None = None) -> Any:
        """Makes any request of the protocol; `remex_client.models` has the types of its params and its result."""
        return await self._session.call(method, params or {}, is_raw=True)

    async def info(self) -> models.EnvironmentInfo:
        """Returns information about the host: shell, directories, what its server can enforce and keep."""
        info: models.EnvironmentInfo = await self._session.call("environment/info", {})
        return info

    async def sessions(self) -> list[SessionInfo]:
        """Lists the sessions of this user, the oldest first."""
        listing = await self._session.call("session/list", {})
        with decoding("session/list"):
            return [SessionInfo.from_wire(entry) for entry in listing["sessions"]]

    async def end_session(self, session: str) -> None:
        """Ends another session of this user, with its processes, by id or name."""
        await self._session.call("session/end", {"sessionId": session})

    async def observe(self, session: str, *, from_start: bool = True) -> ObservedEvents:
        """Returns the events of all processes of another session, without taking it over.

        Observing never holds up a process: what the server drops before it is received is a `Gap`.

            async for process_id, event in await host.observe("nightly"):
                ...
        """
        return await ObservedEvents.open(self._session, session, from_start)

    # Processes.

    async def run(
        self,
        command: Command,
        *,
        input: Input | None = None,
        check: bool = False,
        merge: bool = False,
        max_output_bytes: int | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        name: str | None = None,
        **options: Unpack[StartOptions],
    ) -> Result:
        """Runs a command and returns its complete output and how it ended. `options` are those of `start`.

            result = await host.run(["make", "test"], cwd="/srv/project", timeout=600)
            result = await host.run("sort | uniq -c", input=b"b\\na\\n", check=True)

        - A command as text is a line for `/bin/sh`, a list is a program with its arguments.
        - `input` is bytes, text, or an iterable of pieces, also an asynchronous one.
        - With `check`, an exit code other than 0 raises `CommandFailedError`.
        - With `merge`, standard error goes into `stdout`, in the order in which it arrived.
        - `max_output_bytes` is how much of each stream the result keeps: the beginning and the end, with a notice
          between them.
        - `on_stdout` and `on_stderr` get output as it arrives, and the process waits for them; what they raise ends the
          run.

        Cancelling it kills the process.
        """
        collector = Collector(merge=merge, max_bytes=max_output_bytes, on_stdout=on_stdout, on_stderr=on_stderr)
        if input is not None:
            check_input(input)
            options["stdin"] = PIPE
        process = await self.start(command, name=name, **options)
        try:
            result = await process._communicate(b"" if input is None else input, collector)
        except BaseException:
            if process.closed is None and self._session.lost is None:
                process.post_kill()
            raise
        return result.check() if check else result

    async def start(
        self,
        command: Command,
        *,
        cwd: StrPath | None = None,
        env: Mapping[str, str] | None = None,
        inherit_env: Literal["all", "core", "none"] = "all",
        inherit_secrets: bool = False,
        env_exclude: Sequence[str] = (),
        env_include_only: Sequence[str] = (),
        stdin: int | Literal["pipe", "devnull"] = DEVNULL,
        tty: Tty = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        timeout_grace: float | None = None,
        linger: float | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        durable: bool | None = None,
        sync: bool = False,
        retain_bytes: int | None = None,
        retain_time: float | None = None,
        overflow: Literal["pause", "evict", "hold"] | None = None,
        limits: models.ProcessResourceLimits | None = None,
        sandbox: models.SandboxContext | None = None,
        isolate_pids: bool = False,
        restart: models.ProcessRestart | None = None,
        restartable: bool = False,
        arg0: str | None = None,
        user: str | int | None = None,
    ) -> Process:
        """Starts a process; a start takes effect once, also across disconnects.

            process = await host.start(["python3", "-i"], tty=True)

        - A command as text is a line for `/bin/sh`, a list is a program with its arguments.
        - A relative `cwd` begins at the working directory of the server, and `~` is the home directory there.
        - It inherits the environment of the server, except variables whose names contain KEY, SECRET or TOKEN, and
          nothing of this program's; `env` adds to that.
        - `stdin=PIPE` makes its input writable; that of a terminal always is, and otherwise there is none.
        - `tty` is `True`, or `(rows, cols)`.
        - `timeout` and `idle_timeout` (without output) kill it with its descendants, in seconds; with `timeout_grace`
          they get SIGTERM first, and this time to end.
        - `name` is the id of the process; `host.process(name)` finds it again.
        - `overflow` says what a full log of `retain_bytes` does: `pause` the process while a client is connected (the
          default), `evict` the oldest output, or `hold`: pause it also while the client is away.
        - `restart` runs the command again when it fails or whenever it ends, so many times at most, as one process:
          `{"policy": "onFailure", "maxRestarts": 5}` or `{"policy": "always"}`.
        - `restartable` lets the server keep this request in memory for `process.restart`; a server that cannot do that
          starts the process all the same.
        - `linger` is how long after its exit to wait for background processes that hold the output open.
        - `user` is the account of the host as which it runs, by name or uid, where the server runs as root; without a
          `cwd` it starts in the home of that account.
        """
        options = {option: value for option, value in locals().items() if option not in ("self", "command", "name")}
        session = self._session
        process_id = name if name is not None else session.name("p")
        request = start_request(session, process_id, command, options)
        return await self._start(process_id, request, retain_bytes, wants_stdin(stdin, tty), is_named=name is not None)

    async def attach_or_start(self, command: Command, *, name: str, **options: Unpack[StartOptions]) -> Process:
        """Returns a handle on the process with this name, which it starts if there is none. `options` are those of
        `start`.

            async with remex_client.connect("build", session="nightly") as host:
                process = await host.attach_or_start(["make"], name="build")

        The process may have ended; then its output and its exit are still there.
        """
        lock = self._naming.setdefault(name, asyncio.Lock())
        async with lock:
            # Another client may start the process between two attempts, or the server may forget it.
            for _ in range(_ATTACH_TRIES):
                try:
                    return await self.process(name)
                except RefusedError as error:
                    if not is_unknown_process(error):
                        raise
                try:
                    return await self.start(command, name=name, **options)
                except RefusedError as error:
                    if not is_kind(error, "processExists"):
                        raise
            return await self.process(name)

    async def _start(
        self, process_id: str, request: Mapping[str, object], retain: int | None, has_stdin: bool, is_named: bool
    ) -> Process:
        session = self._session
        cap = (session.welcome.get("limits") or {}).get("retainBytes") or None
        sizes = [size for size in (retain, cap) if size is not None]
        queue = EventQueue(process_id, session, min(sizes, default=None), is_close_announced=session.has_sessions)
        session.add_queue(queue)
        disconnects = session.disconnects
        try:
            started = await session.call("process/start", request)
            with decoding("process/start"):
                pid, incarnation = optional_number(started, "pid"), optional_number(started, "incarnation")
        except BaseException as error:
            # A server of the base dialect does not support `startId`: a repeated start finds its own process.
            is_own = is_kind(error, "processExists") and session.disconnects != disconnects
            if not is_own:
                may_run = isinstance(error, asyncio.CancelledError | TimedOutError | ProtocolError)
                if may_run and not is_named and session.lost is None:
                    # Nobody has a handle to end it with.
                    session.post("process/terminate", {"processId": process_id})
                session.release_queue(queue)
                raise
            started, pid, incarnation = {"replayed": True}, None, None
        # After a disconnect, events may be those of another process, or missing.
        queue.on_started(bool(started.get("replayed")) or session.disconnects != disconnects, incarnation)
        return Process(session, queue, pid, has_stdin, bool(request.get("tty")))

    async def process(self, id: str) -> Process:
        """Returns a handle on a process of this session by its id, for example after `connect(session=Resume(id))`."""
        session = self._session
        await self._check_ended(session.queues.get(id))
        if (queue := session.queues.get(id)) is None:
            probe = {"processId": id, "afterSeq": AFTER_EVERYTHING, "maxBytes": 0}
            found = await session.call("process/read", probe)
            with decoding("process/read"):
                incarnation = optional_number(found, "incarnation")
            # Another task may have made a handle in the meantime.
            if (queue := session.queues.get(id)) is None:
                # The retention limit is unknown; if it is small, the process needs frequent reports to keep running.
                queue = EventQueue(id, session, 0, is_close_announced=session.has_sessions)
                session.add_queue(queue)
                queue.on_started(True, incarnation)
                return Process(session, queue, None, has_stdin=True)
        queue.handles += 1
        return Process(session, queue, None, has_stdin=True)

    async def _check_ended(self, queue: EventQueue | None) -> None:
        """Drops the queue of an ended process if another client has restarted it: nothing is streamed that shows it."""
        if queue is None or queue.closed is None or queue.incarnation is None:
            return
        try:
            await self._session.call("process/read", {**ids_of(queue), "afterSeq": AFTER_EVERYTHING, "maxBytes": 0})
        except RefusedError as error:
            if error.is_restarted:
                self._session.abandon_queue(queue)

    def process_ref(self, session: str, id: str, *, incarnation: int | None = None) -> ProcessRef:
        """Returns a reference to a process of any session, which is given by its id or name.

        Each call is for the process that has this id then, also after a restart; or, with the `incarnation` of a handle
        or of a `ProcessInfo`, for that start only: once it is restarted, calls fail with an error `is_restarted`.
        """
        return ProcessRef(self._session, session, id, incarnation)

    async def processes(self, scope: Literal["session", "identity"] = "session") -> list[ProcessInfo]:
        """Lists the processes of this session, or of all sessions of this user, the oldest first."""
        listing = await self._session.call("process/list", {"scope": scope})
        with decoding("process/list"):
            return [ProcessInfo.from_wire(entry) for entry in listing["processes"]]

    def agent(self, limits: Limits | None = None) -> Agent:
        """Returns an agent, which serves the tool calls of a language model on this host."""
        return Agent(self, limits)


__all__ = [
    "Command",
    "Connecting",
    "Host",
    "Program",
    "RefusedError",
    "Unix",
    "WebSocket",
    "connect",
]
