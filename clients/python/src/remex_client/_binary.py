"""Binary messages: what carries bytes without base64, for servers with the capability `binaryFrames`.

Section 2.4 of PROTOCOL.md. Pure: it sends nothing. Start at `read_output`, `read_message` and `write_message`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from ._codec import InvalidBytes, encode_base64, encode_json
from ._event import Chunk, Stream

#: The first byte of `process/output`, and that of any other message.
OUTPUT, MESSAGE = 1, 2

#: The members of messages of a server that are bytes. The JSON of a binary message does not tell which they are.
BYTES = frozenset(
    ["bodyBase64", "chunk", "dataBase64", "deltaBase64", "match", "stderr", "stdout", "targetBase64", "terminal"]
)

_STREAMS: tuple[Stream, ...] = ("stdout", "stderr", "pty")
_HAS_INCARNATION, _HAS_SESSION = 1, 2

_OUTPUT_HEAD = struct.Struct("!BBBBHHQQ")
_OUTPUT_HEAD_LEN = _OUTPUT_HEAD.size
_MESSAGE_HEAD = struct.Struct("!II")
MESSAGE_HEAD_LEN = _MESSAGE_HEAD.size

#: The kind and the three bytes after it, which are 0.
_MESSAGE_WORD = MESSAGE << 24


def read_output(buffer: bytearray, start: int, end: int) -> tuple[str, str | None, int | None, Chunk]:
    """Decodes `process/output`; returns the ids of the process and of its session, the incarnation and the output.

    Raises `ValueError` if it is malformed.
    """
    if end - start < _OUTPUT_HEAD_LEN:
        raise _ends_early(end - start)
    _, stream, flags, zero, process_len, session_len, seq, incarnation = _OUTPUT_HEAD.unpack_from(buffer, start)
    session_at = start + _OUTPUT_HEAD_LEN + process_len
    data_at = session_at + session_len
    # All of these are 0 nearly always.
    if flags or zero or session_len or incarnation:
        is_known = not zero and flags <= _HAS_INCARNATION | _HAS_SESSION
        if not is_known or (session_len and not flags & _HAS_SESSION) or (incarnation and not flags & _HAS_INCARNATION):
            raise ValueError("a reserved byte or an unknown flag of a binary message is not 0")
    if data_at > end:
        raise _ends_early(end - start)
    view = memoryview(buffer)
    try:
        process_id = str(view[start + _OUTPUT_HEAD_LEN : session_at], "utf-8")
        session_id = str(view[session_at:data_at], "utf-8") if flags & _HAS_SESSION else None
    except UnicodeDecodeError:
        raise ValueError("an id in a binary message is not UTF-8") from None
    chunk = Chunk(seq, _STREAMS[stream] if stream < len(_STREAMS) else "unknown", bytes(view[data_at:end]))
    return process_id, session_id, incarnation if flags & _HAS_INCARNATION else None, chunk


def read_message(buffer: bytearray, start: int, end: int) -> Any:
    """Decodes JSON with the bytes beside it, which take the places of the members that refer to them.

    A reference that is invalid becomes `InvalidBytes`: only what contains it is lost. Raises `ValueError` if the
    message is malformed.
    """
    if end - start < _MESSAGE_HEAD.size:
        raise _ends_early(end - start)
    word, length = _MESSAGE_HEAD.unpack_from(buffer, start)
    if word != _MESSAGE_WORD:
        raise ValueError("a reserved byte or an unknown flag of a binary message is not 0")
    json_at = start + _MESSAGE_HEAD.size
    if length > end - json_at:
        raise _ends_early(end - start)
    view = memoryview(buffer)
    attached_at = json_at + length
    message = json.loads(str(view[json_at:attached_at], "utf-8"))
    _Attached(view[attached_at:end]).put_into(message)
    return message


def _ends_early(length: int) -> ValueError:
    return ValueError(f"a binary message ends after {length} bytes, before its head, its ids or its JSON do")


class _Attached:
    """The bytes beside a message."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        #: No byte belongs to two members, so that a short message never turns into a long one.
        self._from = 0

    def put_into(self, value: Any) -> None:
        """Replaces references in the order of the JSON."""
        if isinstance(value, dict):
            for name, member in value.items():
                if isinstance(member, list) and name in BYTES:
                    value[name] = self._take(member)
                elif isinstance(member, dict | list):
                    self.put_into(member)
        elif isinstance(value, list):
            for member in value:
                if isinstance(member, dict | list):
                    self.put_into(member)

    def _take(self, reference: list[Any]) -> bytes | InvalidBytes:
        if len(reference) != 2 or not all(type(number) is int and number >= 0 for number in reference):
            return InvalidBytes("attached bytes are named by their offset and their length")
        offset, length = reference
        if offset + length > len(self._view):
            beyond = f"{length} bytes at {offset} exceed the {len(self._view)} bytes attached to this message"
            return InvalidBytes(beyond)
        if offset < self._from:
            owner = f"the attached bytes at {offset} belong to an earlier member; the next begin at {self._from}"
            return InvalidBytes(f"{owner} or later")
        self._from = offset + length
        return bytes(self._view[offset : self._from])


def write_message(message: Mapping[str, Any]) -> tuple[bytes, list[bytes]]:
    """Encodes a request; returns its JSON, and the bytes that it refers to in their order.

    Without any bytes, the JSON is the whole message; otherwise `message_head` comes first.
    """
    attached: list[bytes] = []
    offset = 0

    def attach(value: bytes) -> object:
        nonlocal offset
        if not value:
            return ""
        attached.append(value)
        offset += len(value)
        return [offset - len(value), len(value)]

    return encode_json(message, attach), attached


def message_head(text: bytes) -> bytes:
    """Returns what comes before the JSON of a binary message."""
    return _MESSAGE_HEAD.pack(_MESSAGE_WORD, len(text))


def with_base64(value: Any) -> Any:
    """Returns a result as it is in JSON; raises `ValueError` if it refers to invalid bytes."""
    if isinstance(value, dict):
        return {name: with_base64(member) for name, member in value.items()}
    if isinstance(value, list):
        return [with_base64(member) for member in value]
    if isinstance(value, InvalidBytes):
        raise ValueError(value.reason)
    return encode_base64(value) if isinstance(value, bytes) else value
