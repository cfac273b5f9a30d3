"""The acknowledgements that wait to be sent on one connection. Start at `Notes`."""

from __future__ import annotations

from collections.abc import Iterator

from ._call import encode


class Notes:
    """The newest acknowledgement of each kind and subject."""

    def __init__(self) -> None:
        self.mark: int | None = None
        #: By process, with the incarnation that it is about.
        self._consumed: dict[tuple[str, int | None], int] = {}
        self._body_consumed: dict[str, int] = {}

    def clear(self) -> None:
        """Drops them with their connection."""
        self.mark = None
        self._consumed.clear()
        self._body_consumed.clear()

    def add_consumed(self, process_id: str, incarnation: int | None, seq: int) -> None:
        """Adds up to which event a start of a process is consumed."""
        of = (process_id, incarnation)
        self._consumed[of] = max(seq, self._consumed.get(of, 0))

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
            of = {} if incarnation is None else {"incarnation": incarnation}
            yield encode({"method": "flow/consumed", "params": {"processId": process_id, **of, "seq": seq}})
        self._consumed.clear()
        for request_id, seq in self._body_consumed.items():
            yield encode({"method": "flow/bodyConsumed", "params": {"requestId": request_id, "seq": seq}})
        self._body_consumed.clear()
