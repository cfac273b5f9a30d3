"""Waiting for output that matches. Start at `Match` and `find_in`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ._errors import NoMatchError, UsageError
from ._event import Chunk, Event, Exited, Gap, Stream
from ._exit import Exit

#: How much of each stream is kept for a match that further output completes.
_SEARCH_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Match:
    """Output that matched the pattern of a `wait_for`. `seq` is the event that completed the match."""

    seq: int
    data: bytes
    stream: Stream = "unknown"
    #: What came before the match on the same stream since the search began, at most about 128 KiB.
    before: bytes = field(default=b"", repr=False)
    #: What the groups of the pattern matched.
    groups: tuple[bytes | None, ...] = ()
    #: What followed the match on the same stream within that event.
    rest: bytes = field(default=b"", repr=False)
    #: The numbers of the groups that have names.
    names: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def text(self) -> str:
        """The matched bytes as text."""
        return self.data.decode("utf-8", "replace")

    def group(self, key: int | str = 0) -> bytes | None:
        """Returns what a group matched, by its number or name; 0 is the whole match."""
        number = self.names[key] if isinstance(key, str) else key
        return self.data if number == 0 else self.groups[number - 1]


class _Process(Protocol):
    id: str

    def events(self, after: int = 0) -> Any: ...

    async def wait(self) -> Exit: ...


async def find_in(process: _Process, pattern: str | bytes | re.Pattern[bytes], after: int | Match) -> Match:
    """Waits until the output of a process matches; raises `NoMatchError` if all of it ends before that."""
    try:
        search = re.compile(pattern.encode() if isinstance(pattern, str) else pattern)
    except re.error as error:
        raise UsageError(f"cannot wait for {pattern!r}: {error}") from error
    arrived: dict[Stream, bytes] = {}

    def find(seq: int, stream: Stream, data: bytes) -> Match | None:
        text = arrived.get(stream, b"") + data
        if (found := search.search(text)) is None:
            arrived[stream] = text[-_SEARCH_BYTES:]
            return None
        before, rest = text[: found.start()], text[found.end() :]
        return Match(seq, found.group(), stream, before, found.groups(), rest, search.groupindex)

    if isinstance(after, Match):
        # Without new output, not even a pattern that matches the empty text matches.
        if after.rest and (match := find(after.seq, after.stream, after.rest)) is not None:
            return match
        after = after.seq
    event: Event
    exit: Exit | None = None
    async for event in process.events(after):
        if isinstance(event, Chunk):
            if (match := find(event.seq, event.stream, event.data)) is not None:
                return match
        elif isinstance(event, Gap):
            arrived.clear()
        elif isinstance(event, Exited):
            exit = event.exit
    # The exit may have come before `after`.
    exit = exit or await process.wait()
    raise NoMatchError(f"process `{process.id}` ended and did not print {pattern!r}", exit)
