"""Processes: a reference to any process, and the handle on one of this session. Start at `Process`."""

from __future__ import annotations

import asyncio
import re
import signal as signals
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import models
from ._codec import bytes_of, check_seconds, milliseconds, path_from_wire
from ._deadline import limited
from ._errors import (
    GapError,
    ProtocolError,
    RefusedError,
    UsageError,
    decoding,
    is_kind,
)
from ._event import (
    Chunk,
    Closed,
    Event,
    Exited,
    Gap,
    Stream,
    decode_exit,
)
from ._exit import Exit
from ._lines import MAX_LINE_BYTES, Lines
from ._match import Match, find_in
from ._queue import WINDOW_BYTES, EventQueue
from ._restart import restart
from ._result import Collector, Result
from ._session import Session
from ._stdin import (
    WRITE_BYTES,
    Data,
    Input,
    Stdin,
    as_bytes,
    check_accepted,
    check_input,
    pieces_of,
    write_params,
)
from ._streams import POLL, Chunks, Events, PolledEvents, Reader, events_of, later


@dataclass(frozen=True)
class Snapshot:
    """The beginning and the end of all output so far."""

    stdout: bytes
    stderr: bytes
    terminal: bytes
    omitted_bytes: int
    running: bool
    exit_code: int | None

    @property
    def truncated(self) -> bool:
        """Whether some output is left out."""
        return self.omitted_bytes > 0


@dataclass(frozen=True)
class ProcessInfo:
    """What the server knows about a process. Times are in seconds since the Unix epoch."""

    id: str
    session_id: str
    argv: tuple[str, ...]
    cwd: str
    pid: int | None
    tty: bool
    labels: Mapping[str, str]
    #: `starting`, `running`, `exited`, `closed`, or a word of a newer server.
    state: str
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    signal: str | None
    cause: str | None
    durable: bool
    retained_bytes: int
    #: Which start of the process this is; a restart makes another one. None if the server does not tell.
    incarnation: int | None = None

    @classmethod
    def from_wire(cls, entry: models.ProcessEntry) -> ProcessInfo:
        """Decodes an entry of `process/list`."""
        started, ended = entry.get("startedAtMs"), entry.get("endedAtMs")
        return cls(
            id=entry["processId"],
            session_id=entry["sessionId"],
            argv=tuple(entry["argv"]),
            cwd=path_from_wire(entry["cwd"]),
            pid=entry.get("pid"),
            tty=bool(entry.get("tty")),
            labels=dict(entry.get("labels") or {}),
            state=entry["state"],
            started_at=None if started is None else started / 1000,
            ended_at=None if ended is None else ended / 1000,
            exit_code=entry.get("exitCode"),
            signal=entry.get("signal"),
            cause=entry.get("cause"),
            durable=bool(entry.get("durable")),
            retained_bytes=entry.get("retainedBytes") or 0,
            incarnation=entry.get("incarnation"),
        )


class ProcessRef:
    """A process of any session of this user, by its id.

    It needs no handle on the process, and receives nothing by itself: output is polled. Without an incarnation, each
    call is for whichever process has the id then, also after a restart.

        other = host.process_ref("nightly", "build")
        async for line in other.lines():
            ...
    """

    def __init__(
        self, session: Session, session_id: str | None, process_id: str, incarnation: int | None = None
    ) -> None:
        self._session = session
        self.id = process_id
        #: The id or the name of its session; None for that of this client.
        self.session_id = session_id
        self._incarnation = incarnation
        self._readers: dict[Stream, Reader] = {}

    @property
    def incarnation(self) -> int | None:
        """The start of the process that calls are for; once it is restarted, they fail with an error `is_restarted`.

        None stands for whichever runs.
        """
        return self._incarnation

    def _ids(self, **more: Any) -> dict[str, Any]:
        ids: dict[str, Any] = {"processId": self.id, **more}
        if self.incarnation is not None:
            ids["incarnation"] = self.incarnation
        if self.session_id is not None:
            ids["sessionId"] = self.session_id
        return ids

    async def read(self, after: int = 0, *, max_bytes: int = WINDOW_BYTES, wait: float = 0.0) -> list[Event]:
        """Returns retained events after an event, and waits for some for up to `wait` seconds.

        What was dropped is a `Gap`. Ask again with the `seq` of the last one; `Closed` is the last.
        """
        params = self._ids(afterSeq=after, maxBytes=max_bytes, waitMs=milliseconds(wait, "wait") or None)
        reply = await self._session.call("process/read", params, timeout=False)
        with decoding("process/read"):
            return events_of(reply, after)

    async def write(self, data: Data) -> None:
        """Writes to the input, and waits until the server has accepted everything."""
        data = as_bytes(data)
        for at in range(0, len(data), WRITE_BYTES):
            reply = await self._session.call(
                "process/write", self._ids(**write_params(self._session, data[at : at + WRITE_BYTES])), timeout=False
            )
            check_accepted(reply, self.id)

    async def close_stdin(self) -> None:
        """Closes the input after everything that was written."""
        await self._session.call("process/closeStdin", self._ids())

    async def signal(self, signal: str | int) -> None:
        """Sends a signal, such as `INT`, `SIGUSR1` or `signal.SIGINT`, to the process group."""
        await self._session.call("process/signal", self._ids(signal=_signal_name(signal)))

    async def terminate(self, grace: float = 5.0, *, tree: bool = False) -> None:
        """Sends SIGTERM to the process and its descendants, and kills what is left after `grace` seconds.

        With `tree`, also descendants of a process that has ended.
        """
        await self._terminate({"graceful": {"timeoutMs": milliseconds(grace, "grace")}}, tree)

    async def kill(self, *, tree: bool = False) -> None:
        """Kills the process with its descendants, and returns once all of them are gone."""
        await self._terminate("force", tree)

    async def restart(self, grace: float = 5.0) -> int | None:
        """Ends the process with its descendants, and starts it again under its id, as it was started; returns the pid.

        It has `grace` seconds to end after SIGTERM; with 0, it is killed at once. It must have been started with
        `restartable`, and no other client may be attached to its session; it may have ended already. The restart takes
        effect once, also across disconnects, and is carried out even if this call is cancelled. If the new process does
        not start, the error says that the old one has ended. Handles on the old process end with it; this reference
        becomes one to the new process.
        """
        pid, incarnation = await restart(self._session, self._ids(), grace)
        if self._incarnation is not None:
            self._incarnation = incarnation
        return pid

    async def _terminate(self, mode: object, tree: bool) -> None:
        scope = {"scope": "tree"} if tree else {}
        await self._session.call("process/terminate", self._ids(mode=mode, **scope))

    async def resize(self, rows: int, cols: int) -> None:
        """Changes the size of the terminal."""
        await self._session.call("process/resize", self._ids(rows=rows, cols=cols))

    async def snapshot(self, max_bytes: int | None = None) -> Snapshot:
        """Returns the beginning and the end of all output so far."""
        reply = await self._session.call("process/snapshot", self._ids(maxBytes=max_bytes))
        with decoding("process/snapshot"):
            return Snapshot(
                stdout=bytes_of(reply["stdout"]),
                stderr=bytes_of(reply["stderr"]),
                terminal=bytes_of(reply["terminal"]),
                omitted_bytes=reply["omittedBytes"],
                running=reply["running"],
                exit_code=reply["exitCode"],
            )

    async def seek(self, to: Mapping[str, int]) -> models.ProcessSeekResult:
        """Finds a position in the output: `{"atMs": …}`, `{"offset": …}` or `{"tailBytes": …}`."""
        result: models.ProcessSeekResult = await self._session.call("process/seek", self._ids(to=dict(to)))
        return result

    async def info(self) -> ProcessInfo | None:
        """Returns what the server knows about the process, or None if it has forgotten it."""
        listing = await self._session.call("process/list", {"sessionId": self.session_id})
        with decoding("process/list"):
            found = next((ProcessInfo.from_wire(e) for e in listing["processes"] if e["processId"] == self.id), None)
        if found is None or self.incarnation is None or found.incarnation is None:
            return found
        return found if found.incarnation == self.incarnation else None

    async def wait(self) -> Exit:
        """Waits until the process has exited."""
        while True:
            params = self._ids(until="exit", waitMs=round(POLL * 1000))
            reply = await self._session.call("process/wait", params, timeout=False)
            if reply.get("exitCode") is not None:
                with decoding("process/wait"):
                    return decode_exit(reply)

    async def release(self) -> None:
        """Lets the process run while this client is away: a full log drops the oldest output instead of pausing it."""
        await self._session.call("process/release", self._ids())

    async def forget(self) -> None:
        """Makes the server forget a closed process and its output."""
        await self._session.call("process/forget", self._ids())

    def events(self, after: int = 0) -> PolledEvents | Events:
        """Returns the events after an event, in order."""
        return PolledEvents(self, after)

    @property
    def stdout(self) -> Reader:
        """Standard output as a stream of bytes."""
        return self._reader("stdout")

    @property
    def stderr(self) -> Reader:
        """Standard error as a stream of bytes."""
        return self._reader("stderr")

    @property
    def terminal(self) -> Reader:
        """The output of the terminal as a stream of bytes."""
        return self._reader("pty")

    def _reader(self, stream: Stream) -> Reader:
        reader = self._readers.get(stream)
        if reader is None:
            reader = self._readers[stream] = Reader(self.chunks(stream))
        return reader

    def chunks(self, stream: Stream | None = None) -> Chunks:
        """Returns the output from the beginning, of one stream or of all.

        At a gap, it raises `GapError` once, and then continues behind it.
        """
        return Chunks(self.events(), stream)

    def lines(self, stream: Stream | None = None, *, max_bytes: int = MAX_LINE_BYTES) -> Lines:
        """Returns the lines of the output from the beginning; longer ones come in pieces of `max_bytes`.

        At a gap, it raises `GapError` once, and then continues behind it.
        """
        return Lines(self.events(), stream, max_bytes)

    async def wait_for(
        self, pattern: str | bytes | re.Pattern[bytes], *, after: int | Match = 0, timeout: float | None = None
    ) -> Match:
        r"""Waits until output matches, and returns the match, with what came before it and its groups.

        Raises `NoMatchError`, which has the exit, if all output ends before that, and `TimedOutError` after
        `timeout` seconds.

        The pattern is one of `re` over bytes; text stands for its UTF-8. Standard output and standard error are
        searched separately. `$` also matches at the end of what has arrived. So that a prompt is not matched twice,
        give the last match as `after`: the search begins behind it. The `seq` of an event skips all of that event,
        also what it has behind a match.

        Background processes that hold the output open may still print a match after the exit, and are waited for: give
        a `timeout`, or a `linger` to `start`.

            prompt = await shell.wait_for(r"\$ $")
            await shell.stdin.write("make\n")
            await shell.wait_for(r"\$ $", after=prompt)
        """
        check_seconds(timeout, "timeout")
        late = f"process `{self.id}` did not print {pattern!r} within"
        return await limited(find_in(self, pattern, after), timeout, late)


def _signal_name(signal: str | int) -> str:
    """Returns the name of a signal; numbers are those of this system, which Linux hosts share."""
    if isinstance(signal, str):
        return signal
    try:
        return signals.Signals(signal).name
    except (ValueError, TypeError):
        raise UsageError(
            f"cannot send the signal {signal!r}", "give a name such as `INT`, or `signal.SIGINT`"
        ) from None


class Process(ProcessRef):
    """A process of this session.

    Its output is kept for the first consumer (`chunks`, `lines`, `events`, `stdout` …). A consumer that does not read
    holds up the process, as a full pipe does; `wait` and dropping the last handle lift that.

        process = await host.start(["make"])
        async for line in process.lines():
            print(line.text)
        print(await process.wait())
    """

    def __init__(
        self,
        session: Session,
        queue: EventQueue,
        pid: int | None,
        has_stdin: bool,
        is_terminal: bool | None = None,
    ) -> None:
        super().__init__(session, None, queue.id)
        self._queue = queue
        self._has_stdin = has_stdin
        self._is_terminal = is_terminal
        #: The process id on the remote host, if it is known.
        self.pid = pid
        #: Its standard input, or the keys of its terminal.
        self.stdin = Stdin(session, queue, has_stdin, is_terminal)

    def __repr__(self) -> str:
        return f"<Process {self.id!r} pid={self.pid}>"

    def __del__(self) -> None:
        queue: EventQueue | None = getattr(self, "_queue", None)
        if queue is not None:
            session = self._session
            later(session, lambda: session.release_queue(queue))

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kills the process if it is still running."""
        if self._queue.exit is None and self._session.lost is None:
            try:
                await self.kill()
            except RefusedError as failure:
                # It ended with a restart; the new one is not of this block.
                if not failure.is_restarted:
                    raise

    @property
    def incarnation(self) -> int | None:
        """Which start of the process this handle is on; None if the server does not tell."""
        return self._queue.incarnation

    @property
    def exit(self) -> Exit | None:
        """How the process ended, if it has, as far as this client knows."""
        return None if self._queue.exit is None else self._queue.exit[1]

    @property
    def closed(self) -> Closed | None:
        """The last event, if it has arrived: no more output follows."""
        return self._queue.closed

    def events(self, after: int = 0) -> Events:
        """Returns all events after an event, from the beginning by default; gaps are events, too."""
        return Events(self._session, self._queue, after, self)

    async def read(self, after: int = 0, *, max_bytes: int = WINDOW_BYTES, wait: float = 0.0) -> list[Event]:
        # A restart meanwhile gives this handle another one.
        queue = self._queue
        events = await super().read(after, max_bytes=max_bytes, wait=wait)
        queue.on_polled(max([after, *(event.seq for event in events)]))
        return events

    async def restart(self, grace: float = 5.0) -> int | None:
        """Ends the process with its descendants, and starts it again under its id, as it was started; returns the pid.

        Afterwards, this handle is that of the new process: `pid`, `exit`, `wait`, `stdin` and new consumers of output.
        Consumers from before get the rest of the old output and end, with a `RefusedError` (`unknownProcess`) if not
        all of it arrives; so do other handles on the old process. What such a consumer has not read yet holds up the
        output of the new process; another handle that nobody reads keeps up to 1 MiB of the rest, and fails beyond it.

            process = await host.start(["worker"], restartable=True)
            ...
            await process.restart(grace=30)
            async for line in process.lines():
                ...

        It has `grace` seconds to end after SIGTERM; with 0, it is killed at once. It may have ended already. The
        restart takes effect once, also across disconnects, and is carried out even if this call is cancelled. If the
        new process does not start, the error says that the old one has ended.
        """
        ids = self._ids()
        if self._queue.is_replaced:
            # Another handle has restarted it; this is for the one that runs now.
            ids.pop("incarnation", None)
        pid, _ = await restart(self._session, ids, grace, self._queue.successor(), self._on_restarted)
        return pid

    def _on_restarted(self, queue: EventQueue, pid: int | None) -> None:
        old, self._queue, self.pid = self._queue, queue, pid
        self._session.release_queue(old)
        # A reference that somebody kept must not write to the new process.
        self.stdin.is_open = False
        self.stdin = Stdin(self._session, queue, self._has_stdin, self._is_terminal)
        self._readers.clear()

    def post_signal(self, signal: str | int) -> None:
        """Sends a signal without waiting, and without reporting errors."""
        self._session.post("process/signal", self._ids(signal=_signal_name(signal)))

    def post_kill(self) -> None:
        """Kills the process with its descendants, without waiting."""
        self._session.post("process/terminate", self._ids(mode="force"))

    def discard_output(self) -> None:
        """Lets the process run although nobody reads its output, which stays readable as far as it is retained."""
        self._queue.release()

    async def communicate(self, input: Input = b"") -> Result:
        """Writes the input and closes it, and returns all output from the beginning when everything has ended.

        On a terminal, the end of the input is the end-of-file key. Raises `GapError` if output is missing. `stdout` and
        `stderr` begin anew afterwards.
        """
        return await self._communicate(check_input(input), Collector())

    async def _communicate(self, input: Input, collector: Collector) -> Result:
        # Readers that nobody reads from any more would hold up the process.
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        collect = asyncio.create_task(self._collect(collector))
        write = asyncio.create_task(self._write_all(input)) if self.stdin.is_open else None
        try:
            running: set[asyncio.Task[Any]] = {collect} if write is None else {collect, write}
            while not collect.done():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if write in done and (failure := write.exception()) is not None:
                    raise failure
            return collect.result()
        finally:
            for task in (collect, write):
                if task is not None and not task.done():
                    # A process may exit without reading its input; its exit says more than the broken pipe.
                    task.cancel()

    async def _write_all(self, input: Input) -> None:
        # A restart replaces `self.stdin`.
        stdin = self.stdin
        try:
            async for piece in pieces_of(input):
                await stdin.write(piece)
            await stdin.close()
        except RefusedError as error:
            if not is_kind(error, "stdinClosed", "unknownProcess"):
                raise

    async def _collect(self, collector: Collector) -> Result:
        exit: Exit | None = None
        async for event in self.events():
            if isinstance(event, Chunk):
                await collector.take(event)
            elif isinstance(event, Exited):
                exit = event.exit
            elif isinstance(event, Gap):
                raise GapError(event.bytes)
        if exit is None:
            raise ProtocolError(f"process `{self.id}` is closed but has not exited")
        return collector.result(exit)

    async def wait(self) -> Exit:
        """Waits until the process has exited. Unread output no longer holds it up."""
        return await self._exited(self._queue)

    async def wait_closed(self) -> Exit:
        """Waits until the process has exited and all output has ended, also that of background processes."""
        queue = self._queue
        consumer = queue.subscribe_at_end()
        try:
            while queue.closed is None:
                if queue.take(consumer) is None:
                    await queue.wait(consumer)
        finally:
            queue.unsubscribe(consumer)
        return await self._exited(queue)

    async def _exited(self, queue: EventQueue) -> Exit:
        consumer = queue.subscribe_at_end()
        try:
            while queue.exit is None:
                if queue.take(consumer) is None:
                    if queue.closed is not None:
                        raise ProtocolError(f"process `{self.id}` is closed but has not exited")
                    await queue.wait(consumer)
            return queue.exit[1]
        finally:
            queue.unsubscribe(consumer)

    async def wait_for_silence(self, seconds: float) -> Exit | None:
        """Waits until there was no output for this long; returns the exit if that comes first.

        Unread output no longer holds the process up.
        """
        check_seconds(seconds, "seconds")
        queue = self._queue
        consumer = queue.subscribe_at_end()
        try:
            while queue.exit is None:
                left = queue.last_output + seconds - time.monotonic()
                if left <= 0:
                    return None
                if queue.take(consumer) is None:
                    try:
                        await asyncio.wait_for(queue.wait(consumer), left)
                    except asyncio.TimeoutError:
                        pass
            return queue.exit[1]
        finally:
            queue.unsubscribe(consumer)
