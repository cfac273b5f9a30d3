"""The options of a start, and its request. Start at `StartOptions`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from . import models
from ._codec import StrPath, milliseconds
from ._errors import UsageError
from ._event import number_or_none
from ._session import Session

#: Values of `stdin`, as in `subprocess`: an input that can be written to, or none.
PIPE = subprocess.PIPE
DEVNULL = subprocess.DEVNULL

#: A line for `/bin/sh -c`, or a program with its arguments.
Command = str | Sequence[str | bytes | os.PathLike[str]]

#: Whether a process runs on a terminal: `True` for 24 rows and 80 columns, or its rows and columns.
Tty = bool | tuple[int, int] | None

#: The default of `TERM`; nearly every terminal emulator understands it.
_TERM = "xterm-256color"
_TERMINAL_SIZE = (24, 80)


class ProcessOptions(TypedDict, total=False):
    """The options of a start that `asyncio.subprocess` lacks; `Host.start` explains them."""

    inherit_env: Literal["all", "core", "none"]
    inherit_secrets: bool
    env_exclude: Sequence[str]
    env_include_only: Sequence[str]
    tty: Tty
    timeout: float | None
    idle_timeout: float | None
    timeout_grace: float | None
    linger: float | None
    labels: Mapping[str, str] | None
    durable: bool | None
    sync: bool
    retain_bytes: int | None
    retain_time: float | None
    overflow: Literal["pause", "evict", "hold"] | None
    limits: models.ProcessResourceLimits | None
    sandbox: models.SandboxContext | None
    isolate_pids: bool
    restart: models.ProcessRestart | None
    restartable: bool
    arg0: str | None


class StartOptions(ProcessOptions, total=False):
    """The options of `Host.start`, except for the name."""

    cwd: StrPath | None
    user: str | int | None
    env: Mapping[str, str] | None
    stdin: int | Literal["pipe", "devnull"]


def wants_stdin(stdin: object, tty: Tty) -> bool:
    """Returns whether a process gets an input that can be written to: a terminal always has one."""
    words = {PIPE: True, "pipe": True, DEVNULL: False, "devnull": False}
    if isinstance(stdin, bool) or not isinstance(stdin, int | str) or stdin not in words:
        raise UsageError(f"cannot use {stdin!r} as `stdin`", "give `PIPE` or `DEVNULL`, or `input` to `run`")
    return words[stdin] or terminal_size(tty) is not None


def terminal_size(tty: Tty) -> tuple[int, int] | None:
    """Returns rows and columns."""
    if tty is None or tty is False:
        return None
    if tty is True:
        return _TERMINAL_SIZE
    is_size = isinstance(tty, tuple) and len(tty) == 2
    if not is_size or not all(number_or_none(number) for number in tty):
        raise UsageError(
            f"cannot use {tty!r} as the size of a terminal", "give `True`, or rows and columns: `(24, 80)`"
        )
    return tty


def start_request(session: Session, process_id: str, command: Command, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the params of `process/start`; `options` are all those of `Host.start`."""
    size = terminal_size(options["tty"])
    environment = dict(options["env"] or {})
    if size is not None:
        environment.setdefault("TERM", _TERM)
    cwd, user = options["cwd"], _user(session, options["user"])
    params: dict[str, Any] = {
        "processId": process_id,
        "startId": session.name("s"),
        # Without one, a process of another user starts in the home of that account.
        **({} if cwd is None and user is not None else {"cwd": session.cwd if cwd is None else session.path(cwd)}),
        "env": environment,
        "envPolicy": {
            "inherit": options["inherit_env"],
            "ignoreDefaultExcludes": options["inherit_secrets"],
            "exclude": list(options["env_exclude"]),
            "set": {},
            "includeOnly": list(options["env_include_only"]),
        },
        "tty": size is not None,
        "pipeStdin": size is None and wants_stdin(options["stdin"], None),
        **_words(command),
    }
    if size is not None:
        params["rows"], params["cols"] = size
    output = {
        "retainBytes": options["retain_bytes"],
        "retainMs": milliseconds(options["retain_time"], "retain_time"),
        "overflow": options["overflow"],
    }
    optional = {
        "timeoutMs": milliseconds(options["timeout"], "timeout", is_positive=True),
        "idleTimeoutMs": milliseconds(options["idle_timeout"], "idle_timeout", is_positive=True),
        "timeoutGraceMs": milliseconds(options["timeout_grace"], "timeout_grace"),
        "lingerMs": milliseconds(options["linger"], "linger"),
        "labels": dict(options["labels"]) if options["labels"] else None,
        "durable": options["durable"],
        "sync": options["sync"] or None,
        "limits": options["limits"],
        "sandbox": options["sandbox"],
        "isolatePids": options["isolate_pids"] or None,
        "restart": options["restart"],
        "restartable": (options["restartable"] and session.supports("processRestartRequest")) or None,
        "arg0": options["arg0"],
        "user": user,
    }
    if options["limits"] is not None and "processLimits" not in (session.welcome.get("environmentInfo") or {}):
        raise UsageError("cannot limit the resources of a process: this server does not support it")
    if options["restart"] is not None and not session.supports("processRestart"):
        raise UsageError(
            "cannot run a command again when it ends: this server does not support it",
            "omit `restart`, or use a current `remex serve` there",
        )
    params["output"] = {name: value for name, value in output.items() if value is not None}
    return {**params, **{name: value for name, value in optional.items() if value is not None}}


def _user(session: Session, user: object) -> str | None:
    """Returns a user of the host as the wire names it."""
    if user is None:
        return None
    if isinstance(user, bool) or not isinstance(user, str | int):
        raise UsageError(f"cannot use {user!r} as `user`", "give the name of an account of the host, or its uid")
    if not session.supports("processUser"):
        raise UsageError(
            "cannot run a command as another user: this server does not support it",
            "omit `user`, or use a current `remex serve` there that runs as root and starts any process",
        )
    return str(user)


def _words(command: Command) -> dict[str, object]:
    """Returns the members for a command; words that are not UTF-8 are sent as bytes."""
    if isinstance(command, str):
        command = ["/bin/sh", "-c", command]
    if not command:
        raise UsageError("cannot start an empty command")
    words = [os.fspath(word) for word in command]
    raw = [word if isinstance(word, bytes) else os.fsencode(word) for word in words]
    members: dict[str, object] = {"argv": [word.decode("utf-8", "replace") for word in raw]}
    if any(word.decode("utf-8", "replace").encode() != word for word in raw):
        members["argvBase64"] = raw
    return members
