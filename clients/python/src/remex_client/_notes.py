"""The acknowledgements and refusals that wait to be sent on one connection, which may take long. Start at `Notes`."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator

from ._call import encode
from ._errors import UNKNOWN_METHOD

#: How many reports about processes that nobody follows may wait; no server has that many processes in a session.
_MAX_DISCARDED = 16 << 10

#: The longest id that the protocol allows.
_MAX_ID_LEN = 1 << 10

#: How many requests of the server may wait to be refused; a server that sends more gets no answer to the rest.
_MAX_REFUSALS = 256


def refusal(call_id: object) -> bytes:
    """Returns the answer to a request of the server."""
    error = {"code": UNKNOWN_METHOD, "message": "this client accepts no requests"}
    return encode({"error": error, "id": call_id})


class Notes:
    """The newest acknowledgement of each kind and subject."""

    def __init__(self) -> None:
        self.mark: int | None = None
        #: By process, with the incarnation that it is about.
        self._consumed: dict[tuple[str, int | None], int] = {}
        self._body_consumed: dict[str, int] = {}
        self._refusals: deque[object] = deque()

    def clear(self) -> None:
        """Drops them with their connection."""
        self.mark = None
        self._consumed.clear()
        self._body_consumed.clear()
        self._refusals.clear()

    def add_consumed(self, process_id: str, incarnation: int | None, seq: int) -> None:
        """Adds up to which event a start of a process is consumed."""
        of = (process_id, incarnation)
        self._consumed[of] = max(seq, self._consumed.get(of, 0))

    def add_discarded(self, process_id: str, incarnation: int | None, seq: int, *, is_known: bool) -> None:
        """The same for a process without a handle: a server that sends more than it may gets no more reports."""
        has_room = is_known or len(self._consumed) < _MAX_DISCARDED or (process_id, incarnation) in self._consumed
        if has_room and len(process_id) <= _MAX_ID_LEN:
            self.add_consumed(process_id, incarnation, seq)

    def add_refusal(self, call_id: object) -> None:
        """Adds a request of the server, which is refused."""
        is_short = isinstance(call_id, int | str) and len(str(call_id)) <= _MAX_ID_LEN
        if is_short and len(self._refusals) < _MAX_REFUSALS:
            self._refusals.append(call_id)

    def drop_unnamed(self, process_id: str) -> None:
        """Drops what names no start of a process: the server would take it for that of the one after a restart."""
        self._consumed.pop((process_id, None), None)

    def add_body_consumed(self, request_id: str, seq: int) -> None:
        """Adds up to which part a streamed body is consumed."""
        self._body_consumed[request_id] = seq

    def take(self) -> Iterator[bytes]:
        """Returns them as messages, each once."""
        if self.mark is not None:
            yield b'{"method":"flow/ack","params":{"mark":%d}}' % self.mark
            self.mark = None
        for (process_id, incarnation), seq in self._consumed.items():
            of = b"" if incarnation is None else b',"incarnation":%d' % incarnation
            start = b'"processId":%s%s' % (json.dumps(process_id).encode(), of)
            # Spelled out, because it follows nearly every read of much output.
            yield b'{"method":"flow/consumed","params":{%s,"seq":%d}}' % (start, seq)
        self._consumed.clear()
        for request_id, seq in self._body_consumed.items():
            yield encode({"method": "flow/bodyConsumed", "params": {"requestId": request_id, "seq": seq}})
        self._body_consumed.clear()
        while self._refusals:
            yield refusal(self._refusals.popleft())
