"""The shapes of `asyncio.subprocess`, for processes on a remote host.

    from remex_client import asyncio_subprocess as subprocess

    process = await subprocess.create_subprocess_exec(host, "make", "test", stdout=subprocess.PIPE)
    stdout, _ = await process.communicate()

Differences from the standard library: the first argument is the host; `stdin` is empty unless it is a pipe, and nothing
is inherited from this program, so output that is not piped is discarded; `kill` also kills what the process started,
and signals go to its process group; after a disconnect everything continues.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal as signals
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ._errors import RefusedError, RemexError, is_kind
from ._host import Host
from ._process import Process as RemoteProcess
from ._start import ProcessOptions, StartOptions
from ._stdin import Stdin, as_bytes
from ._streams import Reader

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["DEVNULL", "PIPE", "STDOUT", "Process", "StreamWriter", "create_subprocess_exec", "create_subprocess_shell"]


async def create_subprocess_exec(
    host: Host,
    program: str | bytes | os.PathLike[str],
    *args: str | bytes | os.PathLike[str],
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    limit: int = 1 << 16,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    user: str | int | None = None,
    text: Literal[False] | None = None,
    universal_newlines: Literal[False] | None = None,
    encoding: None = None,
    errors: None = None,
    **options: Unpack[ProcessOptions],
) -> Process:
    """Starts a program. With `env`, it gets exactly these variables; `options` are those of `Host.start`.

    With `user`, it runs as that account of the host, by name or uid, and without a `cwd` in its home.
    """
    _check_binary(text, universal_newlines, encoding, errors)
    all_options = StartOptions(**options, cwd=cwd, env=env, user=user, stdin=PIPE if stdin == PIPE else DEVNULL)
    return await _create(host, [program, *args], stdout, stderr, all_options)


async def create_subprocess_shell(
    host: Host,
    cmd: str | bytes,
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    limit: int = 1 << 16,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    user: str | int | None = None,
    text: Literal[False] | None = None,
    universal_newlines: Literal[False] | None = None,
    encoding: None = None,
    errors: None = None,
    **options: Unpack[ProcessOptions],
) -> Process:
    """Starts a line for `/bin/sh`, otherwise as `create_subprocess_exec`."""
    _check_binary(text, universal_newlines, encoding, errors)
    all_options = StartOptions(**options, cwd=cwd, env=env, user=user, stdin=PIPE if stdin == PIPE else DEVNULL)
    return await _create(host, ["/bin/sh", "-c", cmd], stdout, stderr, all_options)


def _check_binary(*modes: object) -> None:
    if any(modes):
        raise ValueError("the streams of a process are bytes: `text`, `encoding` and `errors` are not supported")


async def _create(
    host: Host,
    words: Sequence[str | bytes | os.PathLike[str]],
    stdout: int | None,
    stderr: int | None,
    options: StartOptions,
) -> Process:
    if stderr == STDOUT:
        # Only a shell can join the two in the order in which they were written.
        words = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *words]
    if options["env"] is not None:
        options.setdefault("inherit_env", "none")
    process = await host.start(words, **options)
    return Process(process, options["stdin"] == PIPE, stdout == PIPE, stderr == PIPE)


class StreamWriter:
    """The input of a process, with the methods of `asyncio.StreamWriter`. A task sends the data in order."""

    def __init__(self, stdin: Stdin) -> None:
        self._stdin = stdin
        self._buffer: deque[bytes] = deque()
        self._is_closing = False
        self._is_closed = False
        self._failure: Exception | None = None
        self._sender: asyncio.Task[None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queues data; `drain` waits until it is sent."""
        if isinstance(data, str):
            raise TypeError("the input of a process is bytes, not text")
        if self._is_closing:
            raise RuntimeError("cannot write: the input is closed")
        self._buffer.append(as_bytes(data))
        self._wake()

    def writelines(self, data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Queues several pieces of data."""
        self.write(b"".join(data))

    async def drain(self) -> None:
        """Waits until everything is sent; raises `BrokenPipeError` if the process accepts no more."""
        await self._sent()
        if self._failure is not None:
            raise self._failure

    def can_write_eof(self) -> bool:
        """Returns whether the input can be closed."""
        return True

    def write_eof(self) -> None:
        """Closes the input after everything that was written."""
        self.close()

    def close(self) -> None:
        """Closes the input after everything that was written."""
        self._is_closing = True
        self._wake()

    def is_closing(self) -> bool:
        """Returns whether the input is closed or closing."""
        return self._is_closing

    async def wait_closed(self) -> None:
        """Waits until the input is closed; raises `BrokenPipeError` if the process did not take everything."""
        await self.drain()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns the default: there is no local pipe."""
        return default

    def _wake(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def _sent(self) -> None:
        while self._sender is not None and not self._sender.done():
            await asyncio.wait([self._sender])

    async def _send(self) -> None:
        try:
            while self._buffer:
                data = b"".join(self._buffer)
                self._buffer.clear()
                if self._failure is None:
                    await self._stdin.write(data)
            if self._is_closing and not self._is_closed:
                self._is_closed = True
                await self._stdin.close()
        except RefusedError as error:
            is_broken = is_kind(error, "stdinClosed", "unknownProcess")
            self._failure = BrokenPipeError(errno.EPIPE, error.message) if is_broken else error
        except RemexError as error:
            self._failure = error


class Process:
    """A process on a remote host, with the members of `asyncio.subprocess.Process`."""

    def __init__(self, process: RemoteProcess, has_stdin: bool, has_stdout: bool, has_stderr: bool) -> None:
        #: The process as a `remex_client.Process`.
        self.remote = process
        self.stdin = StreamWriter(process.stdin) if has_stdin else None
        self.stdout: Reader | None = process.stdout if has_stdout else None
        self.stderr: Reader | None = process.stderr if has_stderr else None
        process.discard_output()

    def __repr__(self) -> str:
        return f"<Process {self.pid}>"

    @property
    def pid(self) -> int | None:
        """The process id on the remote host."""
        return self.remote.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the number of the signal that ended the process, or None while it runs."""
        exit = self.remote.exit
        if exit is None:
            return None
        return 128 - exit.exit_code if exit.signal is not None and exit.exit_code > 128 else exit.exit_code

    async def wait(self) -> int:
        """Waits for the exit; piped output must be read, or the process may block."""
        await self.remote.wait()
        assert self.returncode is not None
        return self.returncode

    async def communicate(
        self, input: bytes | bytearray | memoryview | None = None
    ) -> tuple[bytes | None, bytes | None]:
        """Writes the input, reads the output to its end, and waits for the exit."""
        _, stdout, stderr = await asyncio.gather(self._feed(input), _read(self.stdout), _read(self.stderr))
        await self.wait()
        return stdout, stderr

    async def _feed(self, input: bytes | bytearray | memoryview | None) -> None:
        if self.stdin is None:
            return
        if input is not None:
            self.stdin.write(input)
        self.stdin.close()
        try:
            await self.stdin.wait_closed()
        except BrokenPipeError:
            # As in the standard library, a process need not read its input.
            pass

    def send_signal(self, signal: int) -> None:
        """Sends a signal to the process group."""
        self._check_running()
        self.remote.post_signal(signal)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signals.SIGTERM)

    def kill(self) -> None:
        """Kills the process with everything that it started."""
        self._check_running()
        self.remote.post_kill()

    def _check_running(self) -> None:
        if self.returncode is not None:
            raise ProcessLookupError(errno.ESRCH, f"process `{self.remote.id}` has ended")


async def _read(reader: Reader | None) -> bytes | None:
    return None if reader is None else await reader.read()
