"""What can go wrong. Start at `RemexError`."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ._exit import Exit

#: The JSON-RPC code; servers of other dialects send no kind.
UNKNOWN_METHOD = -32601

_RETRYABLE = frozenset(
    [
        "sessionAttached",
        "processStarting",
        "tooManyProcesses",
        "limitExceeded",
        "contentChanged",
        "noSpace",
        "shuttingDown",
    ]
)

LostReason = Literal["closed", "forgotten", "notResumable", "reconnectTimedOut", "takenOver", "protocol", "rejected"]

_LOST_HINTS: dict[str, str] = {
    "closed": "connect again",
    "forgotten": (
        "its processes have ended; connect again, let `detach_ttl` be longer than your longest disconnect, and run the "
        "server with `--state DIR` so that sessions and durable processes survive its restart"
    ),
    "reconnectTimedOut": (
        "while the server keeps it, connect again with `session=Resume(id)`; `reconnect_timeout` is how long to try"
    ),
    "takenOver": "it continues there",
    "notResumable": "connect again; `remex serve` there keeps processes running",
    "protocol": "check that this is a remex server, and its version",
}


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

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return False

    @property
    def may_have_happened(self) -> bool:
        """Whether the call may have taken effect on the remote host despite the error."""
        return False

    @property
    def is_restarted(self) -> bool:
        """Whether the process was restarted since it was started or attached to.

        What was asked of it was not done, and how it ended may be unknown; a new handle is needed for the process that
        runs now.
        """
        return False


class RefusedError(RemexError):
    """The server refused a request.

    `kind` is a stable word such as `unknownProcess`, `code` the number of the error; see section 3 of PROTOCOL.md.
    Refusals that correspond to a built-in exception are instances of that, too, with its `errno` and `filename`:
    `notFound` is a `FileNotFoundError`.
    """

    def __init__(self, code: int, kind: str | None, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.code = code
        self.kind = kind
        self._is_restarted = False

    @property
    def is_retryable(self) -> bool:
        """Whether the server is busy or full, or another client holds the session."""
        return self.kind in _RETRYABLE

    @property
    def may_have_happened(self) -> bool:
        """Whether the server cannot tell how much of the call was carried out."""
        return self.kind in ("cancelled", "internal", "io")

    @property
    def is_restarted(self) -> bool:
        """Whether the process was restarted since; see `RemexError.is_restarted`."""
        return self._is_restarted


class NotFoundError(RefusedError, FileNotFoundError):
    """There is no such file, program or directory: the kind `notFound` or `programNotFound`."""


class AlreadyExistsError(RefusedError, FileExistsError):
    """The file exists: the kind `alreadyExists`."""


class PermissionDeniedError(RefusedError, PermissionError):
    """The user of the server, the token or the sandbox lacks permission: `permissionDenied` or `notExecutable`."""


class RemoteIsADirectoryError(RefusedError, IsADirectoryError):
    """A directory where a file is required: the kind `isADirectory`."""


class RemoteNotADirectoryError(RefusedError, NotADirectoryError):
    """Not a directory where one is required: the kind `notADirectory`."""


class RemoteOSError(RefusedError, OSError):
    """Another failure of the remote file system, such as `noSpace`, `notEmpty` or `io`."""


class StdinClosedError(RefusedError, BrokenPipeError):
    """The process accepts no input: the kind `stdinClosed`."""


class UsageError(RemexError, ValueError):
    """The call makes no sense, or an argument has a bad value."""


class ProtocolError(RemexError):
    """The server broke the protocol."""

    @property
    def may_have_happened(self) -> bool:
        """It may: the answer cannot be understood."""
        return True


class RequestInterrupted(RemexError):
    """The connection was lost during a request that cannot be repeated; whether it took effect is unknown."""

    def __init__(self, method: str) -> None:
        super().__init__(
            f"the connection was lost during `{method}`, which cannot be repeated safely",
            "find out whether it took effect before you try again",
        )
        self.method = method

    @property
    def is_retryable(self) -> bool:
        """It is; see `may_have_happened`."""
        return True

    @property
    def may_have_happened(self) -> bool:
        """It may."""
        return True


class SessionLostError(RemexError):
    """The session is lost; every call fails with this.

    `reason` is `closed` (by this program), `forgotten` (the server no longer knows the session),
    `reconnectTimedOut`, `takenOver` (by another client), `protocol` (the server sent too many invalid messages),
    `notResumable` (a server of the oldest dialect has no sessions) or `rejected` (the server does not let the client
    back in). `__cause__` has the last error, if there is one.
    """

    def __init__(self, reason: LostReason, message: str) -> None:
        super().__init__(f"the session is lost: {message}", _LOST_HINTS.get(reason))
        self.reason: LostReason = reason

    @property
    def is_retryable(self) -> bool:
        """Whether another connection may find the session again."""
        return self.reason == "reconnectTimedOut"

    @property
    def may_have_happened(self) -> bool:
        """It may."""
        return True


class LocalError(RemexError, OSError):
    """A file of this host, or another local resource, failed; `__cause__` is the `OSError`."""

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        super().__init__(message)
        if cause is not None:
            self.errno, self.strerror, self.filename = cause.errno, cause.strerror, cause.filename


class UnreachableError(RemexError, ConnectionError):
    """The server cannot be reached."""

    @property
    def is_retryable(self) -> bool:
        """It is."""
        return True


class UnauthorizedError(RemexError):
    """The server refused the token, or requires one; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class TimedOutError(RemexError, TimeoutError):
    """Something took longer than its limit."""

    def __init__(self, message: str, hint: str | None = None, *, is_call: bool = False) -> None:
        super().__init__(message, hint)
        self.errno = errno.ETIMEDOUT
        self._is_call = is_call

    @property
    def is_retryable(self) -> bool:
        """It is; see `may_have_happened`."""
        return True

    @property
    def may_have_happened(self) -> bool:
        """Whether a request was sent."""
        return self._is_call


class GapError(RemexError):
    """Output is missing here: the server had to drop it. Reading can continue after the gap.

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
    """A command exited with a code other than 0: raised by `run(check=True)`. `result` has its output."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class NoMatchError(RemexError, EOFError):
    """The output of a process ended before a `wait_for` matched. `exit` says how the process ended."""

    def __init__(self, message: str, exit: Exit) -> None:
        super().__init__(message)
        self.exit = exit


_BY_KIND: dict[str | None, tuple[type[RefusedError], int]] = {
    "notFound": (NotFoundError, errno.ENOENT),
    "programNotFound": (NotFoundError, errno.ENOENT),
    "alreadyExists": (AlreadyExistsError, errno.EEXIST),
    "permissionDenied": (PermissionDeniedError, errno.EACCES),
    "notExecutable": (PermissionDeniedError, errno.EACCES),
    "isADirectory": (RemoteIsADirectoryError, errno.EISDIR),
    "notADirectory": (RemoteNotADirectoryError, errno.ENOTDIR),
    "notAFile": (RemoteOSError, errno.EINVAL),
    "notEmpty": (RemoteOSError, errno.ENOTEMPTY),
    "symbolicLink": (RemoteOSError, errno.ELOOP),
    "crossDevice": (RemoteOSError, errno.EXDEV),
    "noSpace": (RemoteOSError, errno.ENOSPC),
    "io": (RemoteOSError, errno.EIO),
    "stdinClosed": (StdinClosedError, errno.EPIPE),
}

#: Why a working directory cannot be entered.
_BAD_CWD: dict[int, type[RefusedError]] = {
    errno.ENOENT: NotFoundError,
    errno.EACCES: PermissionDeniedError,
    errno.ENOTDIR: RemoteNotADirectoryError,
}

#: The end of a message that the operating system made.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def refused(error: object, path: str | None = None) -> RemexError:
    """Decodes an error; `path` is the one in the request, if there was one."""
    if not isinstance(error, dict):
        return ProtocolError("cannot decode an error of the server")
    code, message, data = error.get("code"), error.get("message"), error.get("data")
    if isinstance(code, bool) or not isinstance(code, int) or not isinstance(message, str):
        return ProtocolError("cannot decode an error of the server")
    data = data if isinstance(data, dict) else {}
    kind, hint = data.get("kind"), data.get("hint")
    kind = kind if isinstance(kind, str) else None
    hint = hint if isinstance(hint, str) else None
    said = _OS_ERROR.search(message)
    number = int(said[1]) if said else None
    made: type[RefusedError]
    if kind == "notAFile" and "is a directory" in (hint or ""):
        # Only the hint tells which kind of file it is.
        made, usual = RemoteIsADirectoryError, errno.EISDIR
    elif kind == "badCwd":
        made, usual = _BAD_CWD.get(number or 0, RemoteOSError), errno.EIO
    else:
        made, usual = _BY_KIND.get(kind, (RefusedError, errno.EIO))
    decoded = made(code, kind, _failed_start(data) + message, hint)
    decoded._is_restarted = data.get("restarted") is True
    if isinstance(decoded, OSError):
        decoded.errno, decoded.strerror = number or usual, message
        subject = data.get("cwd") or data.get("program") or path
        decoded.filename = subject if isinstance(subject, str) else None
    return decoded


def restarted(process_id: str, what: str | None = None) -> RefusedError:
    """Returns the error that ends the events of a process before a restart, which this client was away for."""
    what = what or (
        f"process `{process_id}` was restarted while this client was disconnected; how the one before ended, and the "
        "rest of its output, are unknown"
    )
    error = RefusedError(-32600, "unknownProcess", what, "make a new handle for the process that runs now")
    error._is_restarted = True
    return error


def _failed_start(data: dict[str, Any]) -> str:
    """Returns the program and the directory of a failed start, which the message of the system does not name."""
    program, cwd = data.get("program"), data.get("cwd")
    if not isinstance(program, str):
        return ""
    return f"cannot start `{program}` in `{cwd}`: " if isinstance(cwd, str) else f"cannot start `{program}`: "


@contextmanager
def decoding(method: str) -> Iterator[None]:
    """Turns what a malformed answer raises into a `ProtocolError`."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RemexError):
            raise
        raise ProtocolError(f"cannot decode the answer to `{method}`: {error!r}") from error


#: An older name, which is that of the TypeScript client.
RequestInterruptedError = RequestInterrupted


def is_kind(error: BaseException | None, *kinds: str) -> bool:
    """Returns whether the server refused something with one of these kinds."""
    return isinstance(error, RefusedError) and error.kind in kinds


def is_unknown_process(error: BaseException | None) -> bool:
    """Returns whether the server does not know a process; servers of the base dialect send only a message."""
    return isinstance(error, RefusedError) and (
        error.kind == "unknownProcess" or error.message.startswith("unknown process id")
    )
