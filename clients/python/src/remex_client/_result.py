"""The outcome of a command, and how its output is collected. Start at `Result`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from io import BytesIO

from ._errors import CommandFailedError, UsageError
from ._event import Chunk
from ._exit import Exit
from ._text import Truncator

#: Receives output as it arrives.
OutputCallback = Callable[[bytes], Awaitable[None] | None]


@dataclass(frozen=True)
class Result:
    """The outcome of a command. All output of a terminal is in `terminal`."""

    exit: Exit
    stdout: bytes = b""
    stderr: bytes = b""
    terminal: bytes = b""
    #: Output of a stream with an unknown name.
    other: bytes = b""
    #: How many bytes `max_output_bytes` of `run` left out.
    omitted_bytes: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code, or 128 plus the number of the signal."""
        return self.exit.exit_code

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit.ok

    @property
    def text(self) -> str:
        """Standard output, or that of the terminal, as text; invalid UTF-8 is replaced."""
        return (self.stdout or self.terminal).decode("utf-8", "replace")

    def check(self) -> Result:
        """Raises `CommandFailedError` unless the exit code is 0."""
        if not self.ok:
            how = f"signal {self.exit.signal}" if self.exit.signal else f"exit code {self.exit_code}"
            said = (self.stderr or self.terminal or self.stdout)[-2000:].decode("utf-8", "replace").strip()
            raise CommandFailedError(f"the command failed ({how})" + (f": {said[-400:]}" if said else ""), self)
        return self


class Collector:
    """Collects the output of a process by stream: all of it, or its beginning and end."""

    def __init__(
        self,
        *,
        merge: bool = False,
        max_bytes: int | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> None:
        if merge and on_stderr is not None:
            raise UsageError("cannot call `on_stderr`: with `merge`, all output is standard output", "use `on_stdout`")
        if max_bytes is not None and max_bytes < 0:
            raise UsageError(f"cannot keep {max_bytes} bytes of output", "give 0 or more")
        self._merge = merge
        self._max_bytes = max_bytes
        self._callbacks = {"stdout": on_stdout, "pty": on_stdout, "stderr": on_stdout if merge else on_stderr}
        # A `BytesIO` returns its content without copying it.
        self._whole: dict[str, BytesIO] = {}
        self._bounded: dict[str, Truncator] = {}

    async def take(self, chunk: Chunk) -> None:
        """Adds a piece of output."""
        stream = "stdout" if self._merge and chunk.stream == "stderr" else chunk.stream
        if self._max_bytes is not None:
            self._bounded.setdefault(stream, Truncator(self._max_bytes)).push(chunk.data)
        else:
            self._whole.setdefault(stream, BytesIO()).write(chunk.data)
        callback = self._callbacks.get(chunk.stream)
        if callback is not None:
            outcome = callback(chunk.data)
            if inspect.isawaitable(outcome):
                await outcome

    def result(self, exit: Exit) -> Result:
        """Returns the outcome."""
        output = {stream: gathered.getvalue() for stream, gathered in self._whole.items()}
        omitted = 0
        for stream, truncator in self._bounded.items():
            kept = truncator.finish()
            # With a limit of 0, there is no room for a notice either.
            output[stream] = kept.text.encode() if self._max_bytes else b""
            omitted += kept.omitted_bytes
        stdout, stderr, terminal, other = (output.get(s, b"") for s in ("stdout", "stderr", "pty", "unknown"))
        return Result(exit, stdout, stderr, terminal, other, omitted)
