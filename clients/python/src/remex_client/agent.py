"""Processes for the tool calls of a language model.

A model starts a command, waits a little, reads some output, and calls again. So a call returns when the command has
ended or a time has passed, with output truncated to a budget, and the process goes on under a number.

    agent = Agent(host)
    step = await agent.exec("make test", yield_after=10)
    output = step.output.text
    while step.state == "running":
        step = await agent.write(step.handle, yield_after=30)
        output += step.output.text
    print(output, step.exit)
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ._codec import check_seconds
from ._errors import RemexError, UsageError
from ._event import Chunk, Closed, Exited, Gap
from ._exit import Exit
from ._process import Process
from ._start import PIPE, Command, StartOptions
from ._stdin import Data, as_bytes
from ._text import Cleaner, TruncatedText, Truncator

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Agent", "Limits", "ListedProcess", "Step", "TruncatedText"]


@dataclass(frozen=True)
class Limits:
    """Limits of an agent; times are in seconds."""

    #: How many processes may be open; beyond that, the one that ended and was not used for longest is forgotten.
    open: int = 64
    #: How long a call waits by default, and the bounds of what it can ask for.
    yield_after: float = 10.0
    yield_min: float = 0.25
    yield_max: float = 30.0
    #: How much output a call returns by default.
    output_bytes: int = 40 << 10
    #: How much output between two calls is kept.
    collect_bytes: int = 512 << 10
    #: How much output the server keeps, and how long after the end.
    retain_bytes: int = 8 << 20
    retain_time: float = 600.0
    #: How long after its exit a command may hold its output open by background processes.
    linger: float | None = 5.0
    #: Whether colours, cursor movements and the like are removed.
    remove_control_sequences: bool = True


@dataclass(frozen=True)
class Step:
    """What happened during a call."""

    #: The number of the process, for the next call.
    handle: int
    #: What the process printed since the last call.
    output: TruncatedText
    #: `running`; `exited` (background processes hold its output open); `ended`; `lost` (see `error`).
    state: Literal["running", "exited", "ended", "lost"]
    exit: Exit | None
    error: RemexError | None
    #: How long the call waited, in seconds.
    waited: float

    def to_json(self) -> dict[str, Any]:
        """Returns the step as a model reads it."""
        message: dict[str, Any] = {
            "handle": self.handle,
            "state": self.state,
            "output": self.output.text,
            "waitedMs": round(self.waited * 1000),
        }
        if self.output.omitted_bytes:
            message["omittedBytes"] = self.output.omitted_bytes
        if self.exit is not None:
            message["exitCode"] = self.exit.exit_code
            message |= {k: v for k, v in asdict(self.exit).items() if k in ("signal", "cause") and v is not None}
        if self.error is not None:
            message["error"] = str(self.error)
        return message


@dataclass(frozen=True)
class ListedProcess:
    """An open process of an agent."""

    handle: int
    command: str
    state: Literal["running", "exited", "ended", "lost"]
    #: How long ago it was last used, in seconds.
    idle_for: float
    unseen_bytes: int


class Starter(Protocol):
    """What starts the processes of an agent, such as a `remex_client.Host`."""

    async def start(self, command: Command, *, name: str | None = None, **options: Unpack[StartOptions]) -> Process:
        """Starts a process."""


class Agent:
    """Runs the commands of a language model on a host. See the module for an example."""

    def __init__(self, host: Starter, limits: Limits | None = None) -> None:
        self._host = host
        self._limits = limits or Limits()
        self._open: dict[int, _Open] = {}
        self._next = 1

    async def exec(
        self,
        command: Command,
        *,
        yield_after: float | None = None,
        max_output_bytes: int | None = None,
        name: str | None = None,
        **options: Unpack[StartOptions],
    ) -> Step:
        """Starts a command, and waits until it has ended or `yield_after` seconds have passed.

        `options` are those of `Host.start`; the input is a pipe unless they say otherwise.
        """
        self._make_room()
        limits = self._limits
        began = time.monotonic()
        options.setdefault("stdin", PIPE)
        options.setdefault("retain_bytes", limits.retain_bytes)
        options.setdefault("retain_time", limits.retain_time)
        options.setdefault("linger", limits.linger)
        process = await self._host.start(command, name=name, **options)
        opened = _Open(process, command if isinstance(command, str) else " ".join(map(str, command)), limits)
        handle, self._next = self._next, self._next + 1
        self._open[handle] = opened
        return await self._step(handle, opened, yield_after, max_output_bytes, began)

    async def write(
        self,
        handle: int,
        data: Data = b"",
        *,
        end: bool = False,
        yield_after: float | None = None,
        max_output_bytes: int | None = None,
    ) -> Step:
        """Writes to a process, closes its input with `end`, and waits as `exec` does; without data, it only waits."""
        opened, began = self._find(handle), time.monotonic()
        raw = as_bytes(data)
        if raw or end:
            if opened.state != "running":
                raise UsageError(f"process {handle} has ended, and takes no input")
            opened.start_write(raw, end)
        return await self._step(handle, opened, yield_after, max_output_bytes, began)

    async def output(self, handle: int, max_bytes: int) -> TruncatedText:
        """Returns the beginning and the end of all output of a process, including what was returned before."""
        snapshot = await self._find(handle).process.snapshot(max_bytes)
        truncator = Truncator(max_bytes)
        cleaner = Cleaner()
        for part in (snapshot.stdout, snapshot.stderr, snapshot.terminal):
            truncator.push(cleaner.push(part) + cleaner.finish() if self._limits.remove_control_sequences else part)
        truncator.skip(snapshot.omitted_bytes)
        return truncator.finish()

    def list(self) -> list[ListedProcess]:
        """Lists the open processes."""
        now = time.monotonic()
        return [
            ListedProcess(handle, opened.command, opened.state, now - opened.used_at, opened.unseen_bytes)
            for handle, opened in self._open.items()
        ]

    def process(self, handle: int) -> Process:
        """Returns the process of a handle."""
        return self._find(handle).process

    async def interrupt(self, handle: int) -> None:
        """Interrupts a process, as Ctrl-C does."""
        opened = self._find(handle)
        if opened.is_terminal:
            await opened.process.stdin.write(b"\x03")
        else:
            await opened.process.signal("INT")

    async def terminate(self, handle: int, grace: float = 5.0) -> None:
        """Sends SIGTERM to a process, and kills it after `grace` seconds."""
        await self._find(handle).process.terminate(grace)

    async def kill(self, handle: int) -> None:
        """Kills a process with everything that it started."""
        await self._find(handle).process.kill()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kills all processes that still run, unless the session is lost."""
        try:
            await self.close()
        except RemexError:
            # An error raised in the block says more than one of the end.
            if error is None:
                raise

    async def close(self) -> None:
        """Kills all processes that still run."""
        for opened in self._open.values():
            await opened.close()
        self._open.clear()

    def _find(self, handle: int) -> _Open:
        opened = self._open.get(handle)
        if opened is None:
            raise UsageError(f"there is no process {handle}", "give the number that starting the process returned")
        opened.used_at = time.monotonic()
        return opened

    def _make_room(self) -> None:
        if len(self._open) < self._limits.open:
            return
        ended = [handle for handle, opened in self._open.items() if opened.state in ("ended", "lost")]
        if not ended:
            raise UsageError(f"{len(self._open)} processes are open", "end one of them first")
        del self._open[min(ended, key=lambda handle: self._open[handle].used_at)]

    async def _step(
        self,
        handle: int,
        opened: _Open,
        yield_after: float | None,
        max_output_bytes: int | None,
        began: float,
    ) -> Step:
        limits = self._limits
        check_seconds(yield_after, "yield_after")
        wanted = limits.yield_after if yield_after is None else yield_after
        patience = min(max(wanted, limits.yield_min), limits.yield_max)
        ended = asyncio.ensure_future(opened.ended.wait())
        try:
            await asyncio.wait([ended], timeout=patience)
            opened.check_writes()
        finally:
            ended.cancel()
        opened.used_at = time.monotonic()
        output = opened.take(limits.output_bytes if max_output_bytes is None else max_output_bytes)
        state = opened.state
        return Step(handle, output, state, opened.process.exit, opened.error, time.monotonic() - began)


@dataclass
class _Open:
    """A process with the output that no call has returned yet."""

    process: Process
    command: str
    limits: Limits
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    error: RemexError | None = None
    used_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._collected = Truncator(self.limits.collect_bytes)
        self._cleaners: dict[str, Cleaner] = {}
        self.is_terminal = False
        self._task = asyncio.create_task(self._collect())
        #: Writes that are under way, the oldest first.
        self._writes: deque[asyncio.Task[None]] = deque()

    @property
    def state(self) -> Literal["running", "exited", "ended", "lost"]:
        if self.error is not None:
            return "lost"
        if self.ended.is_set():
            return "ended"
        return "running" if self.process.exit is None else "exited"

    @property
    def unseen_bytes(self) -> int:
        return self._collected.total_bytes

    def start_write(self, data: bytes, end: bool) -> None:
        """Queues a write; nothing waits for it, because the process may not read."""
        self._writes.append(asyncio.create_task(self._write(data, end)))

    def check_writes(self) -> None:
        """Raises the error of a write, unless the end of the process explains it."""
        while self._writes and self._writes[0].done():
            failure = self._writes.popleft().exception()
            if failure is not None and self.state == "running":
                raise failure

    async def _write(self, data: bytes, end: bool) -> None:
        await self.process.stdin.write(data)
        await self.process.stdin.drain()
        if end:
            await self.process.stdin.close()

    def take(self, budget: int) -> TruncatedText:
        for cleaner in self._cleaners.values():
            self._collected.push(cleaner.finish())
        collected, self._collected = self._collected, Truncator(self.limits.collect_bytes)
        return collected.finish(budget)

    async def close(self) -> None:
        if self.state == "running":
            await self.process.kill()
        for task in (self._task, *self._writes):
            task.cancel()
        await asyncio.wait([self._task, *self._writes])
        for write in self._writes:
            if not write.cancelled():
                write.exception()  # silences the warning: nobody needs the error any more

    async def _collect(self) -> None:
        try:
            async for event in self.process.events():
                if isinstance(event, Chunk):
                    self.is_terminal = event.stream == "pty"
                    self._collected.push(self._cleaned(event))
                elif isinstance(event, Gap):
                    self._collected.skip(event.bytes)
                elif isinstance(event, Exited | Closed):
                    pass
        except RemexError as error:
            self.error = error
        finally:
            self.ended.set()

    def _cleaned(self, chunk: Chunk) -> bytes:
        if not self.limits.remove_control_sequences:
            return chunk.data
        return self._cleaners.setdefault(chunk.stream, Cleaner()).push(chunk.data)
