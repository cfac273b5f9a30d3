"""Bytes and paths on the wire."""

from __future__ import annotations

import binascii
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from ._errors import UsageError

#: A path on the remote host: text, bytes, a `PurePosixPath`, or a `file:` URI as text. A relative one begins at the
#: working directory of the server, and `~` is the home directory there.
StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_vector_decode: Callable[..., bytes] | None
encode_base64_bytes: Callable[[bytes], bytes]
try:  # Missing if the package was installed without its dependencies.
    import pybase64

    _vector_decode = pybase64.b64decode
    encode_base64_bytes = pybase64.b64encode
except ImportError:
    _vector_decode = None

    def encode_base64_bytes(data: bytes) -> bytes:
        """Encodes as standard base64."""
        return binascii.b2a_base64(data, newline=False)


def encode_base64(data: bytes | bytearray | memoryview) -> str:
    """Encodes as standard base64."""
    return encode_base64_bytes(bytes(data)).decode("ascii")


def decode_base64(data: str | bytes | memoryview) -> bytes:
    """Decodes standard base64 with padding; raises `ValueError` for anything else."""
    if _vector_decode is not None:
        return _vector_decode(data, validate=True)
    decoded = binascii.a2b_base64(data)
    # `a2b_base64` skips invalid characters, which shows in the length. (Its strict mode needs Python 3.11.)
    last = data[-2:]
    equals: str | int = "=" if isinstance(last, str) else 61
    padding = sum(1 for symbol in last if symbol == equals)
    if len(data) % 4 or len(decoded) != len(data) // 4 * 3 - padding:
        raise ValueError("invalid base64")
    return decoded


class InvalidBytes:
    """Stands for a member of a binary message whose bytes are not there."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


def bytes_of(member: object) -> bytes:
    """Returns the bytes of a member of a message, which are beside it or in it as base64.

    Raises `ValueError` for anything else.
    """
    if isinstance(member, bytes):
        return member
    if isinstance(member, str):
        return decode_base64(member)
    raise ValueError(member.reason if isinstance(member, InvalidBytes) else "bytes must be base64")


def encode_json(message: Mapping[str, Any], encode_bytes: Callable[[bytes], object]) -> bytes:
    """Encodes a message, with what `encode_bytes` returns in the place of bytes.

    A malformed message is refused here: the server could not tell which request it is.
    """

    def other(value: object) -> object:
        if isinstance(value, bytes):
            return encode_bytes(value)
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=other)
    try:
        return encoder.encode(message).encode()
    except (ValueError, TypeError) as error:
        raise UsageError(f"cannot send `{message.get('method')}`: {error}") from error


def path_to_wire(path: StrPath, cwd: object = None, home: object = None) -> str:
    """Spells a path of the remote host: plain, or as a URI if it is not UTF-8.

    A relative path begins at `cwd`, and `~` is `home`, if they are known.
    """
    native = os.fspath(path)
    if isinstance(native, str) and native[:5].lower() == "file:":
        return native
    try:
        raw = native.encode("utf-8", "surrogateescape") if isinstance(native, str) else native
    except UnicodeEncodeError:
        raise UsageError(f"cannot use the path {native!r}: it is no text") from None
    if not raw:
        raise UsageError("cannot use an empty path", "`.` is the working directory")
    if not raw.startswith(b"/"):
        is_home = raw == b"~" or raw.startswith(b"~/")
        base = home if is_home else cwd
        if not isinstance(base, str):
            what = f"the server does not say where its {'home' if is_home else 'working'} directory is"
            raise UsageError(f"cannot resolve the path {_shown(native)}: {what}", "give an absolute path")
        rest = raw[1:].lstrip(b"/") if is_home else raw
        directory = path_from_wire(base).encode("utf-8", "surrogateescape")
        raw = directory.rstrip(b"/") + b"/" + rest if rest else directory
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "file://" + quote_from_bytes(raw, safe="/")


def _shown(path: str | bytes) -> str:
    return f"`{path}`" if isinstance(path, str) else repr(path)


def path_from_wire(text: object) -> str:
    """Decodes a path of an answer; bytes that are not UTF-8 become surrogates, as in `os.fsdecode`."""
    if not isinstance(text, str):
        raise ValueError("a path must be a string")
    if text[:7].lower() == "file://":
        return unquote_to_bytes(text[7:]).decode("utf-8", "surrogateescape")
    return text


def path_or_none(text: object) -> str | None:
    """Decodes a path of a request for an error message."""
    return path_from_wire(text) if isinstance(text, str) else None


def params_for(welcome: Mapping[str, Any], params: Mapping[str, object]) -> Mapping[str, object]:
    """Returns params with paths as the server of this `welcome` spells them."""
    if not welcome.get("sessionId"):
        return with_plain_paths(params)
    if not welcome.get("server") and welcome.get("environmentInfo"):
        # A server of the base dialect describes its host, but not itself.
        return with_uris(params)
    return params


#: The members of requests that are paths, in every method that a server other than remex may have.
_PATHS = ("cwd", "path", "sourcePath", "destinationPath")


def with_uris(params: Mapping[str, object]) -> dict[str, object]:
    """Returns params for a server of the base dialect, which knows no plain paths."""
    uris = dict(params)
    for name in _PATHS:
        text = uris.get(name)
        if isinstance(text, str) and text.startswith("/"):
            uris[name] = "file://" + quote_from_bytes(text.encode(), safe="/")
    return uris


def with_plain_paths(params: Mapping[str, object]) -> dict[str, object]:
    """Returns params for a server of the oldest dialect, which knows no URIs; what is not UTF-8 stays one."""
    plain = dict(params)
    for name in _PATHS:
        text = plain.get(name)
        if isinstance(text, str) and text[:7].lower() == "file://":
            path = path_from_wire(text)
            if not any("\ud800" <= character <= "\udfff" for character in path):
                plain[name] = path
    return plain


def join(directory: str, name: str) -> str:
    """Joins components of a path on the remote host, where slashes separate them on every platform."""
    return f"{directory.rstrip('/')}/{name}"


def split(path: str) -> tuple[str, str]:
    """Splits a path of the remote host into its directory and its name."""
    directory, _, name = path.rpartition("/")
    return directory or "/", name


def milliseconds(seconds: float | None, name: str, *, is_positive: bool = False) -> int | None:
    """Converts seconds to milliseconds; raises an error for anything that is not a duration."""
    if seconds is None:
        return None
    check_seconds(seconds, name, is_positive=is_positive)
    if seconds == math.inf:
        raise UsageError(f"cannot use an infinite number of seconds as `{name}`", "leave it out")
    return max(1 if is_positive else 0, round(seconds * 1000))


def check_seconds(seconds: float | None, name: str, *, is_positive: bool = False) -> None:
    """Raises an error for anything that is not a duration, such as a negative number."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"`{name}` cannot be of the type `{type(seconds).__name__}`: give a number of seconds")
    if not (seconds > 0 if is_positive else seconds >= 0):
        least = "more than 0" if is_positive else "0 or more"
        raise UsageError(f"cannot use {seconds} seconds as `{name}`", f"give {least}")


def epoch_milliseconds(seconds: float | None) -> int | None:
    """Converts seconds since the Unix epoch to milliseconds."""
    return None if seconds is None else max(0, round(seconds * 1000))
