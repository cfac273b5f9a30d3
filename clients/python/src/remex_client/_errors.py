"""What can go wrong. Start at `RemexError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

LostReason = Literal["closed", "forgotten", "notResumable", "reconnectTimedOut", "takenOver", "protocol", "rejected"]


class RemexError(Exception):
    """The base of all errors of this package.

    `hint` says what to do, if that is known.
    """

    hint: str | None = None

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class RefusedError(RemexError):
    """The server refused a request.

    `kind` is a stable word such as `unknownProcess`, `code` the number of the error; see section 3 of PROTOCOL.md.
    Refusals that correspond to a built-in exception are instances of that, too: `notFound` is a `FileNotFoundError`.
    """

    def __init__(self, code: int, kind: str | None, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.code = code
        self.kind = kind


class NotFoundError(RefusedError, FileNotFoundError):
    """There is no such file: the kind `notFound`."""


class AlreadyExistsError(RefusedError, FileExistsError):
    """The file exists: the kind `alreadyExists`."""


class PermissionDeniedError(RefusedError, PermissionError):
    """The user of the server, the token or the sandbox lacks permission: the kind `permissionDenied`."""


class RemoteIsADirectoryError(RefusedError, IsADirectoryError):
    """A directory where a file is required: the kind `isADirectory`."""


class RemoteNotADirectoryError(RefusedError, NotADirectoryError):
    """Not a directory where one is required: the kind `notADirectory`."""


class UsageError(RemexError, ValueError):
    """The caller asked for something that makes no sense."""


class ProtocolError(RemexError):
    """The server broke the protocol."""


class RequestInterruptedError(RemexError):
    """The connection was lost during a request that cannot be repeated; whether it took effect is unknown."""

    def __init__(self, method: str) -> None:
        super().__init__(
            f"the connection was lost during `{method}`, which cannot be repeated safely",
            "find out whether it took effect before you try again",
        )
        self.method = method


class SessionLostError(RemexError):
    """The session is lost; every call fails with this.

    `reason` is `closed` (by this program), `forgotten` (the server no longer knows the session),
    `reconnectTimedOut`, `takenOver` (by another client), `protocol` (the server sent too many invalid messages) or
    `rejected` (the server does not let the client back in). `__cause__` has the last error, if there is one.
    """

    def __init__(self, reason: LostReason, message: str) -> None:
        super().__init__(f"the session is lost: {message}")
        self.reason: LostReason = reason


class LocalError(RemexError):
    """A file of this host, or another local resource, failed; `__cause__` is the `OSError`."""


class UnreachableError(RemexError):
    """The server cannot be reached."""


class UnauthorizedError(RemexError):
    """The server refused the token, or requires one; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class TimedOutError(RemexError, TimeoutError):
    """Something took longer than its limit."""


class GapError(RemexError):
    """Output is missing here: the server had to drop it. Reading may go on behind the gap.

    `bytes` is how much is missing, or None if the server no longer knows.
    """

    def __init__(self, bytes: int | None) -> None:
        size = "an unknown number of bytes" if bytes is None else f"{bytes} bytes"
        super().__init__(f"{size} of output were dropped by the server before they were received")
        self.bytes = bytes


class ChangedError(RemexError):
    """A file changed while it was being copied."""

    def __init__(self, path: str) -> None:
        super().__init__(f"`{path}` changed during the copy", "try again")
        self.path = path


class CommandFailedError(RemexError):
    """A command exited with another code than 0: raised by `run(check=True)`. `result` has its output."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


_BY_KIND: dict[str | None, type[RefusedError]] = {
    "notFound": NotFoundError,
    "alreadyExists": AlreadyExistsError,
    "permissionDenied": PermissionDeniedError,
    "isADirectory": RemoteIsADirectoryError,
    "notADirectory": RemoteNotADirectoryError,
}


def refused(error: object) -> RemexError:
    """Decodes the error of an answer."""
    if not isinstance(error, dict):
        return ProtocolError("cannot decode an error of the server")
    code, message, data = error.get("code"), error.get("message"), error.get("data")
    if not isinstance(code, int) or not isinstance(message, str):
        return ProtocolError("cannot decode an error of the server")
    data = data if isinstance(data, dict) else {}
    kind, hint = data.get("kind"), data.get("hint")
    kind = kind if isinstance(kind, str) else None
    message = _failed_start(data) + message
    return _BY_KIND.get(kind, RefusedError)(code, kind, message, hint if isinstance(hint, str) else None)


def _failed_start(data: dict[str, Any]) -> str:
    """Returns what the text of the operating system leaves out, if a program could not be started."""
    program, cwd = data.get("program"), data.get("cwd")
    if not isinstance(program, str):
        return ""
    return f"cannot start `{program}` in `{cwd}`: " if isinstance(cwd, str) else f"cannot start `{program}`: "


@contextmanager
def decoding(method: str) -> Iterator[None]:
    """Makes a `ProtocolError` of what goes wrong with an answer that has another form than it should."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RemexError):
            raise
        raise ProtocolError(f"cannot decode the answer to `{method}`: {error!r}") from error


def is_kind(error: BaseException | None, *kinds: str) -> bool:
    """Returns whether the server refused something with one of these kinds."""
    return isinstance(error, RefusedError) and error.kind in kinds


def is_unknown_process(error: BaseException | None) -> bool:
    """Returns whether the server does not know a process; servers of the base dialect say it in words only."""
    return isinstance(error, RefusedError) and (
        error.kind == "unknownProcess" or error.message.startswith("unknown process id")
    )
