"""The shapes of `asyncio.subprocess`, for processes on a remote host.

    from remex_client import asyncio_subprocess as subprocess

    process = await subprocess.create_subprocess_exec(host, "make", "test", stdout=subprocess.PIPE)
    stdout, _ = await process.communicate()

Differences from the standard library: the first argument is the host; `stdin` is empty unless it is a pipe, and nothing
is inherited from this program, so output that is not piped is discarded; after a disconnect everything continues.
"""

from __future__ import annotations

import asyncio
import signal as signals
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

from ._errors import RefusedError, is_kind
from ._host import Command, Host
from ._process import Process as RemoteProcess
from ._streams import Reader, Stdin

__all__ = ["DEVNULL", "PIPE", "STDOUT", "Process", "StreamWriter", "create_subprocess_exec", "create_subprocess_shell"]


async def create_subprocess_exec(
    host: Host,
    program: str,
    *args: str,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    **options: Any,
) -> Process:
    """Starts a program. With `env`, it gets exactly these variables; `options` are those of `Host.start`."""
    return await _create(host, [program, *args], stdin, stdout, stderr, cwd, env, options)


async def create_subprocess_shell(
    host: Host,
    cmd: str,
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    **options: Any,
) -> Process:
    """Starts a line for `/bin/sh`."""
    return await _create(host, cmd, stdin, stdout, stderr, cwd, env, options)


async def _create(
    host: Host,
    command: Command,
    stdin: int | None,
    stdout: int | None,
    stderr: int | None,
    cwd: str | None,
    env: dict[str, str] | None,
    options: dict[str, Any],
) -> Process:
    if stderr == STDOUT:
        # Only a shell can join the two in the order in which they were written.
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        command = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *words]
    if env is not None:
        options = {"inherit_env": "none", **options}
    process = await host.start(command, cwd=cwd, env=env, stdin="pipe" if stdin == PIPE else "none", **options)
    return Process(process, stdin == PIPE, stdout == PIPE, stderr == PIPE)


class StreamWriter:
    """The input of a process, with the methods of `asyncio.StreamWriter`."""

    def __init__(self, stdin: Stdin) -> None:
        self._stdin = stdin
        self._buffer: list[bytes] = []
        self._is_closing = False

    def write(self, data: bytes) -> None:
        """Queues data; `drain` sends it."""
        self._buffer.append(bytes(data))

    def writelines(self, data: Any) -> None:
        """Queues several pieces of data."""
        self._buffer.extend(bytes(piece) for piece in data)

    async def drain(self) -> None:
        """Sends what is queued, and waits while the process does not read."""
        data, self._buffer = b"".join(self._buffer), []
        if data:
            await self._stdin.write(data)

    def can_write_eof(self) -> bool:
        """Returns whether the input can be closed."""
        return True

    def write_eof(self) -> None:
        """Closes the input; `wait_closed` does it."""
        self._is_closing = True

    def close(self) -> None:
        """Closes the input; `wait_closed` does it."""
        self._is_closing = True

    def is_closing(self) -> bool:
        """Returns whether the input is closed, or about to be."""
        return self._is_closing

    async def wait_closed(self) -> None:
        """Sends what is queued and closes the input."""
        self._is_closing = True
        await self.drain()
        await self._stdin.close()


class Process:
    """A process on a remote host, with the members of `asyncio.subprocess.Process`."""

    def __init__(self, process: RemoteProcess, has_stdin: bool, has_stdout: bool, has_stderr: bool) -> None:
        #: The process with everything else that remex offers.
        self.remote = process
        self.stdin = StreamWriter(process.stdin) if has_stdin else None
        self.stdout: Reader | None = process.stdout if has_stdout else None
        self.stderr: Reader | None = process.stderr if has_stderr else None
        process.discard_output()

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
        return 128 - exit.code if exit.signal is not None and exit.code > 128 else exit.code

    async def wait(self) -> int:
        """Waits for the exit; output that is piped must be read, or the process may not get there."""
        await self.remote.wait()
        assert self.returncode is not None
        return self.returncode

    async def communicate(self, input: bytes | None = None) -> tuple[bytes | None, bytes | None]:
        """Writes the input, reads the output to its end, and waits for the exit."""
        _, stdout, stderr = await asyncio.gather(self._feed(input), _read(self.stdout), _read(self.stderr))
        await self.wait()
        return stdout, stderr

    async def _feed(self, input: bytes | None) -> None:
        if self.stdin is None:
            return
        self.stdin.write(input or b"")
        try:
            await self.stdin.wait_closed()
        except RefusedError as error:
            # As in the standard library, a process need not read its input.
            if not is_kind(error, "stdinClosed", "unknownProcess"):
                raise

    async def send_signal(self, signal: int | signals.Signals) -> None:
        """Sends a signal to the process group."""
        await self.remote.signal(signals.Signals(signal).name)

    async def terminate(self) -> None:
        """Sends SIGTERM."""
        await self.remote.signal("TERM")

    async def kill(self) -> None:
        """Kills the process with everything that it started."""
        await self.remote.kill()


async def _read(reader: Reader | None) -> bytes | None:
    return None if reader is None else await reader.read()
