"""Requests, and which of them may be sent again after a disconnect: section 18.1 of PROTOCOL.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ._binary import MESSAGE_HEAD_LEN, message_head, with_base64, write_message
from ._codec import encode_base64, encode_base64_bytes, encode_json
from ._errors import RemexError, UsageError
from ._link import Link

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

    __slots__ = (
        "_attached",
        "_json",
        "_request",
        "id",
        "is_raw",
        "is_sent",
        "method",
        "on_done",
        "path",
        "repeats",
        "slots",
    )

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
        self._request: Mapping[str, Any] = {"id": id, "method": method, "params": dict(params)}
        self._json = b""
        #: The bytes beside the JSON, for a connection with binary messages.
        self._attached: list[bytes] = []
        self.repeats = may_repeat(method, params)
        self.on_done = on_done
        self.slots = slots
        self.is_sent = False
        #: Whether the result may be any value, and not only an object.
        self.is_raw = False

    def encode(self, *, is_binary: bool, limit: int) -> None:
        """Encodes it for a connection with or without binary messages, whose server accepts `limit` bytes unless 0.

        Raises `UsageError` if it cannot be sent.
        """
        if not self._json or (self._attached and not is_binary):
            self._json, self._attached = write_message(self._request) if is_binary else (encode(self._request), [])
        length = len(self._json) + sum(map(len, self._attached))
        if self._attached:
            length += MESSAGE_HEAD_LEN
        if 0 < limit < length:
            raise UsageError(
                f"`{self.method}` needs a message of {length} bytes; the server accepts {limit}", "send it in parts"
            )

    def send(self, link: Link) -> None:
        """Sends it as it was encoded last."""
        self.is_sent = True
        if self._attached:
            link.send_binary([message_head(self._json), self._json, *self._attached])
        else:
            link.send(self._json)

    def result(self, result: Any, *, is_binary: bool) -> Any:
        """Returns a result as its caller expects it; raises `ValueError` if it is invalid."""
        if self.is_raw:
            # The models of the protocol have base64, whichever way it has arrived.
            return with_base64(result) if is_binary else result
        if not isinstance(result, dict):
            raise ValueError("it is not an object")
        return result


def encode(message: Mapping[str, Any]) -> bytes:
    """Encodes a message; params that are bytes travel as base64."""
    params = message.get("params") or {}
    blobs = {name: value for name, value in params.items() if isinstance(value, bytes)}
    if not blobs:
        return encode_json(message, encode_base64)
    rest = {name: value for name, value in params.items() if name not in blobs}
    text = encode_json({**message, "params": rest}, encode_base64)
    # Base64 needs no escaping, and searching for characters to escape would dominate.
    members = [b'"%s":"%s"' % (name.encode(), encode_base64_bytes(blob)) for name, blob in blobs.items()]
    return text[:-2] + (b"," if rest else b"") + b",".join(members) + b"}}"
