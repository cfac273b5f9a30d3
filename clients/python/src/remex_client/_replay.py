"""Puts the events of one process in order: section 18.2 of PROTOCOL.md.

Pure: it sends nothing and decodes nothing. Start at `Replay`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from ._event import Chunk, Event, Gap

#: How much is held while earlier events are missing: twice the window of a server.
MAX_HELD_EVENTS = 8192
MAX_HELD_BYTES = 512 << 10


class Unlisted(NamedTuple):
    """Numbers that the answer to a read covers without an event: the exit and the close."""

    from_seq: int
    to_seq: int


class _Held(NamedTuple):
    from_seq: int
    to_seq: int
    size: int
    event: Event


class Replay:
    """Takes events from the stream and from reads, and yields them in order and exactly once, with gaps.

    After each `feed`, `feed_read` and `interrupt`, take what is `ready()`, and then ask `wanted_read()`.
    """

    __slots__ = ("_held", "_held_bytes", "_reading", "covered", "cursor", "latest")

    def __init__(self) -> None:
        #: The last event that was yielded.
        self.cursor = 0
        #: The last event known to exist, whether it is held or was dropped.
        self.latest = 0
        #: The last event that an answer to a read has covered.
        self.covered = 0
        #: In the order of `from_seq`, which is unique.
        self._held: list[_Held] = []
        self._held_bytes = 0
        self._reading: Literal["idle", "wanted", "in progress"] = "idle"

    def pass_through(self, seq: int) -> bool:
        """Returns whether the event is simply the next one; if so, it counts as yielded and must not be fed."""
        if seq != self.cursor + 1 or self._held:
            return False
        self.cursor = seq
        if seq > self.latest:
            self.latest = seq
        return True

    def feed(self, event: Event) -> None:
        """Adds an event of the stream."""
        self._hold(event)
        # Events of reads stay: the number of a dropped one would be taken for an exit.
        while len(self._held) > 1 and (len(self._held) > MAX_HELD_EVENTS or self._held_bytes > MAX_HELD_BYTES):
            if self._held[-1].from_seq <= max(self.covered, self.cursor + 1):
                break
            self._held_bytes -= self._held.pop().size

    def feed_read(self, gap: Gap | None, chunks: Iterable[Chunk], next_seq: int, is_complete: bool) -> None:
        """Adds the answer to the read that `wanted_read` asked for."""
        if gap is not None:
            self._hold(gap)
        for chunk in chunks:
            self._hold(chunk)
        self.covered = max(self.covered, next_seq - 1)
        self.latest = max(self.latest, self.covered)
        self._reading = "idle" if is_complete else "wanted"

    def ready(self) -> Iterator[Event | Unlisted]:
        """Yields everything that is next in order."""
        while True:
            following = self.cursor + 1
            arrived = self._held[0].from_seq if self._held else None
            if arrived is None or arrived > following:
                if self.covered < following:
                    return
                to_seq = self.covered if arrived is None else min(self.covered, arrived - 1)
                self.cursor = to_seq
                yield Unlisted(following, to_seq)
                continue
            held = self._held.pop(0)
            self._held_bytes -= held.size
            if held.from_seq < following:
                # A gap that reaches across the cursor has the wrong size: read the exact one.
                if held.to_seq >= following:
                    self.covered = self.cursor
                continue
            self.cursor = held.to_seq
            yield held.event

    @property
    def is_missing(self) -> bool:
        """Whether there are events, or may be some, that have not arrived."""
        return self._reading == "wanted" or self.latest > self.cursor

    def wanted_read(self) -> int | None:
        """Returns the event to read after, if events are missing and no read is in progress."""
        if not self.is_missing or self._reading == "in progress":
            return None
        self._reading = "in progress"
        return self.cursor

    def interrupt(self) -> None:
        """Records a disconnect or a failed read: events may be missing, and no read is in progress."""
        self._reading = "wanted"

    def _hold(self, event: Event) -> None:
        from_seq = event.from_seq if isinstance(event, Gap) else event.seq
        to_seq = event.seq
        if to_seq <= self.cursor or to_seq < from_seq:
            return
        self.latest = max(self.latest, to_seq)
        new = _Held(from_seq, to_seq, len(event.data) if isinstance(event, Chunk) else 0, event)
        index = bisect_left(self._held, (from_seq,))
        if index < len(self._held) and self._held[index].from_seq == from_seq:
            # The longer gap wins: its bytes include those of an event with the same number.
            if self._held[index].to_seq >= to_seq:
                return
            self._held_bytes -= self._held.pop(index).size
        self._held_bytes += new.size
        self._held.insert(index, new)
