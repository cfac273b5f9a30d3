"""Whether the server on a unix socket can be trusted with command lines and environments. Start at `check`."""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from pathlib import Path

from ._errors import UnreachableError

_ROOT = 0
# The command line of the first process of a remex sandbox, which nothing in the sandbox can change.
_FIRST_PROCESS = b"remex-init\0"


def check(connected: socket.socket, path: str) -> None:
    """Checks the program at the other end of a new connection, to which nothing has been sent.

    It is trusted if this user, the administrator or somebody runs it whose directory it is, and if no sandbox confines
    it: a confined program has the same user, and may be able to create a socket where a server is expected.
    """
    if sys.platform != "linux":
        return
    form = "3i"
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    pid, user, _ = struct.unpack(form, peer)
    if user not in (_ROOT, os.geteuid()) and not _is_private_place_of(user, path):
        raise UnreachableError(
            f"cannot trust unix://{path}: what listens there belongs to user {user}, "
            "and others can create files in that directory",
            "let the server listen in a directory in which only its user can create files, or check the path",
        )
    if pid == 0:
        # The peer is outside of our pid namespace.
        return
    try:
        confined = _is_confined(pid)
    except FileNotFoundError:
        raise UnreachableError(
            f"cannot trust unix://{path}: process {pid}, which opened the socket, has ended", "start the server again"
        ) from None
    if confined:
        raise UnreachableError(
            f"cannot trust unix://{path}: process {pid}, which listens there, is in a remex sandbox",
            "end that process, or connect to a server outside of the sandbox",
        )


def _is_private_place_of(user: int, path: str) -> bool:
    """Returns whether only this user or the administrator can have created a socket."""
    try:
        found = os.stat(os.path.dirname(path) or ".")
    except OSError:
        return False
    return found.st_uid in (user, _ROOT) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_confined(pid: int) -> bool:
    """Returns whether a process is in a sandbox of remex.

    Raises FileNotFoundError if it has ended.
    """
    try:
        own = _namespace(os.getpid())
    except OSError:
        # There is no `/proc`.
        return False
    try:
        theirs = _namespace(pid)
    except PermissionError:
        # A confined program whose file is not readable hides its namespace, but not its status.
        theirs = None
    if theirs == own:
        return False
    numbers, has_no_new_privileges = _status(pid)
    if len(numbers) < 2 or not has_no_new_privileges:
        return False
    return theirs is None or _has_first_process(theirs)


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


def _status(pid: int) -> tuple[list[str], bool]:
    """Returns the numbers of a process in each pid namespace, and whether it cannot gain privileges."""
    lines = Path(f"/proc/{pid}/status").read_bytes().decode(errors="replace").split("\n")
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return fields.get("NSpid", "").split(), fields.get("NoNewPrivs", "").strip() == "1"


def _has_first_process(namespace: str) -> bool:
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit() or _namespace(int(name)) != namespace:
                continue
            numbers, _ = _status(int(name))
            if numbers[-1:] == ["1"] and Path(f"/proc/{name}/cmdline").read_bytes() == _FIRST_PROCESS:
                return True
        except OSError:
            # The process has ended, or belongs to another user.
            continue
    return False
