"""Requests, and which of them may be sent again after a disconnect: section 18.1 of PROTOCOL.md."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from ._codec import encode_base64_bytes
from ._errors import RemexError, UsageError

_ALWAYS = frozenset(
    [
        "process/read",
        "process/seek",
        "process/wait",
        "process/snapshot",
        "process/list",
        "process/collect",
        "process/terminate",
        "process/closeStdin",
        "process/release",
        "process/resize",
        "session/list",
        "session/end",
        "fs/readFile",
        "fs/getMetadata",
        "fs/canonicalize",
        "fs/readDirectory",
        "fs/walk",
        "fs/readLink",
        "fs/hash",
        "fs/search",
        "fs/setPermissions",
        "fs/setTimes",
        "environment/info",
        "environment/status",
        "environmentConfig/read",
        "capabilityRoots/discoverV1",
        "capabilities/discoverV2",
    ]
)


def may_repeat(method: str, params: Mapping[str, object]) -> bool:
    """Returns whether an unanswered request may be sent again."""
    if method in _ALWAYS:
        return True
    if method == "process/start":
        return params.get("startId") is not None
    if method == "process/restart":
        return params.get("restartId") is not None
    if method == "process/write":
        return params.get("writeId") is not None
    if method == "fs/writeFile":
        return params.get("ifMatch") is None
    if method == "fs/createDirectory":
        return params.get("recursive") is not False
    if method == "http/request":
        return params.get("method") in ("GET", "HEAD", "OPTIONS") and not params.get("streamResponse")
    return False


#: Requests that never wait for a free slot, so that a process can be ended however busy the session is.
CONTROL = frozenset(
    [
        "process/signal",
        "process/terminate",
        "process/closeStdin",
        "process/release",
        "process/forget",
        "process/resize",
        "process/list",
        "process/collect",
        "session/list",
        "session/end",
        "session/observe",
        "session/unobserve",
        "environment/status",
        "fs/close",
        "fs/unwatch",
    ]
)

#: Requests that may wait for a process or a web server.
PARKED = frozenset(["process/write", "process/wait", "process/restart", "http/request"])


class Call:
    """A request that waits for its answer."""

    __slots__ = ("id", "is_raw", "is_sent", "message", "method", "on_done", "path", "repeats", "slots")

    def __init__(
        self,
        id: int,
        method: str,
        params: Mapping[str, object],
        on_done: Callable[[Any, RemexError | None], None],
        slots: asyncio.Semaphore | None,
    ) -> None:
        self.id = id
        self.method = method
        #: The path that errors name.
        self.path = params.get("path") or params.get("sourcePath")
        self.message = encode({"id": id, "method": method, "params": params})
        self.repeats = may_repeat(method, params)
        self.on_done = on_done
        self.slots = slots
        self.is_sent = False
        #: Whether the result may be any value, and not only an object.
        self.is_raw = False


def encode(message: Mapping[str, Any]) -> bytes:
    """Encodes a message; params that are bytes travel as base64.

    A malformed message is refused here: the server could not tell which request it is.
    """
    params = message.get("params") or {}
    blobs = {name: value for name, value in params.items() if isinstance(value, bytes)}
    if blobs:
        rest = {name: value for name, value in params.items() if name not in blobs}
        message = {**message, "params": rest}
    try:
        text = json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError) as error:
        raise UsageError(f"cannot send `{message.get('method')}`: {error}") from error
    if blobs:
        # Base64 needs no escaping, and searching for characters to escape would dominate.
        members = [b'"%s":"%s"' % (name.encode(), encode_base64_bytes(blob)) for name, blob in blobs.items()]
        comma = b"," if rest else b""
        text = text[:-2] + comma + b",".join(members) + b"}}"
    return text
