"""The environments that the user has configured for the program `remex`, by name. Start at `find`."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._errors import UsageError
from ._target import Program, Target, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The variables that may have an address, in the order of precedence; they define the environment `remote`.
_VARIABLES = ("REMEX_URL", "CODEX_EXEC_SERVER_URL")

#: A longer file is not an environments file.
_MAX_FILE_BYTES = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

#: Leads to the user's own server on this machine, which it starts on demand.
_LOCAL = Program(("remex", "proxy"))


@dataclass(frozen=True)
class Environment:
    """A server with a name, and how long to wait for it; None where nothing is configured."""

    target: Target
    connect_timeout: float | None = None
    handshake_timeout: float | None = None
    reconnect_timeout: float | None = None


def is_name(target: object) -> bool:
    """Returns whether a target can only be the name of an environment."""
    return isinstance(target, str) and _NAME.fullmatch(target) is not None


def find(name: str, variables: Mapping[str, str] = os.environ) -> Environment:
    """Returns the environment with this name: from the environments file, or from `REMEX_URL` if there is none.

    `local` is the user's own server on this machine.
    """
    path = _file(variables)
    if path is not None and os.path.lexists(path):
        return _of_file(path, name)
    known = ["local"]
    for variable in _VARIABLES:
        if value := variables.get(variable, "").strip():
            if value.lower() == "none":
                raise UsageError(f"cannot use the environment `{name}`: {variable} disables all of them")
            if name == "remote":
                return Environment(parse(value))
            known = ["remote", "local"]
            break
    if name == "local":
        return Environment(_LOCAL)
    raise _unknown(name, known)


def _file(variables: Mapping[str, str]) -> str | None:
    config = variables.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):
        home = variables.get("HOME", "")
        if not home:
            return None
        config = os.path.join(home, ".config")
    return os.path.join(config, "remex", "environments.toml")


def _unknown(name: str, known: list[str]) -> UsageError:
    return UsageError(
        f"unknown environment `{name}`; known: {', '.join(known) or 'none'}",
        f"add it with `remex env add {name}`, or give an address such as `ws://host:port`",
    )


def _of_file(path: str, name: str) -> Environment:
    text, status = _read(path)
    if status.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"cannot use `{path}`: it belongs to another user, who could make it run programs")
    if status.st_mode & 0o022:
        what = f"cannot use `{path}`: other users can write to it, and could make it run programs"
        raise UsageError(what, f"run `chmod go-w {path}`")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"cannot use `{path}`: {error}") from error
    has_local = content.get("include_local", True) is not False
    if name == "local" and has_local:
        return Environment(_LOCAL)
    tables = content.get("environments", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"cannot use `{path}`: `environments` is not a list of tables")
    found = [table for table in tables if table.get("id") == name]
    if not found:
        known = [table["id"] for table in tables if isinstance(table.get("id"), str)]
        raise _unknown(name, [*known, *(["local"] if has_local else [])])
    return _Table(path, name, found[0]).environment()


class _Table:
    """The table of one environment."""

    def __init__(self, path: str, name: str, table: Mapping[str, Any]) -> None:
        self._path = path
        self._name = name
        self._table = table

    def environment(self) -> Environment:
        """Returns the environment."""
        if ("url" in self._table) == ("program" in self._table):
            raise self._wrong("it needs either `url` or `program`")
        target = self._url() if "url" in self._table else self._program()
        connect, handshake = self._seconds("connect_timeout_sec"), self._seconds("initialize_timeout_sec")
        if handshake is None and isinstance(target, Program):
            # A program starts at once; what takes time is the handshake through it.
            handshake = connect
        return Environment(target, connect, handshake, self._seconds("reconnect_timeout_sec"))

    def _url(self) -> Target:
        url = self._text("url") or ""
        if url.startswith(("unix:", "/")):
            socket = url.removeprefix("unix://").removeprefix("unix:")
            return parse("unix://" + self._beside(socket))
        if not url.startswith("wss://"):
            return parse(url, token=self._token())
        certificate, key = self._file("client_cert"), self._file("client_key")
        if (certificate is None) != (key is None):
            raise self._wrong("`client_cert` and `client_key` need each other")
        pair = None if certificate is None or key is None else (certificate, key)
        return parse(url, token=self._token(), ca=self._file("ca"), pin=self._text("pin"), client_cert=pair)

    def _program(self) -> Program:
        program = self._text("program") or ""
        if "/" in program:
            program = self._beside(program)
        args, env = self._table.get("args", []), self._table.get("env", {})
        if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
            raise self._wrong("`args` is not a list of strings")
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise self._wrong("`env` is not a table of strings")
        return Program((program, *args), env or None, self._file("cwd"))

    def _token(self) -> str | None:
        file = self._file("auth_bearer_token_file")
        if file is None:
            return self._text("auth_bearer_token")
        text, status = _read(file)
        if status.st_mode & 0o022 or (status.st_mode & 0o044 and status.st_uid == os.geteuid()):
            raise UsageError(f"cannot use the token file `{file}`: other users have access", f"run `chmod 600 {file}`")
        lines = (line.strip() for line in text.splitlines())
        words = next((line.split() for line in lines if line and not line.startswith("#")), [])
        if not words:
            raise UsageError(f"the token file `{file}` is empty", "write the token to it")
        return words[0]

    def _seconds(self, key: str) -> float | None:
        value = self._table.get(key)
        if value is None:
            return None
        if value == "forever" and key == "reconnect_timeout_sec":
            return float("inf")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._wrong(f"`{key}` is not a positive number of seconds")
        return float(value)

    def _text(self, key: str) -> str | None:
        value = self._table.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise self._wrong(f"`{key}` is not a string, or empty")
        return value

    def _file(self, key: str) -> str | None:
        value = self._text(key)
        if value is not None and (value == "~" or value.startswith("~/")):
            raise self._wrong(f"`{key}` starts with `~`, which is not expanded")
        return None if value is None else self._beside(value)

    def _beside(self, path: str) -> str:
        return os.path.join(os.path.dirname(self._path), path)

    def _wrong(self, what: str) -> UsageError:
        return UsageError(f"cannot use the environment `{self._name}` of `{self._path}`: {what}")


def _read(path: str) -> tuple[str, os.stat_result]:
    try:
        # Opening a FIFO would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UsageError(f"cannot use `{path}`: it is not a regular file")
        with open(path, "rb") as file:
            content, status = file.read(_MAX_FILE_BYTES + 1), os.fstat(file.fileno())
        if len(content) > _MAX_FILE_BYTES:
            raise UsageError(f"cannot use `{path}`: it is longer than 1 MiB", "check the path")
        return content.decode(), status
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from error
