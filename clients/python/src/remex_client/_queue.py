"""The events of one process, queued between the connection and the consumers.

Events that every consumer has taken leave the queue and are reported to the server, which then sends more. So a
consumer that does not read holds up its own process only, and memory stays bounded. Start at `EventQueue`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from ._errors import ProtocolError, RemexError, RequestInterrupted, is_unknown_process, restarted
from ._event import (
    Chunk,
    Closed,
    Event,
    Exited,
    Gap,
    decode_chunk,
    decode_closed,
    decode_exit,
    decode_gap,
    number,
    number_or_none,
)
from ._exit import Exit
from ._replay import Replay, Unlisted

#: How far a server streams ahead of the last consumed event.
WINDOW_BYTES = 256 << 10
WINDOW_EVENTS = 4096

#: How much is kept for the slowest consumer; a server that supports `consumed` never sends that much.
_QUEUE_BYTES = 1 << 20
_QUEUE_EVENTS = 16 << 10

_MIN_READ_BYTES = 4 << 10

#: A position behind every event. A read after it returns the state of a process without its output, and acknowledges
#: nothing; in a report of what is consumed, it stands for everything so far.
AFTER_EVERYTHING = (1 << 64) - 2

#: How long a process of the oldest dialect must be silent after its exit to count as closed.
_SILENCE_MS = 250

#: How many answers in a row may lack the next event: an event can overtake an older answer.
_MAX_IDLE_READS = 16


def ids_of(queue: EventQueue) -> dict[str, Any]:
    """Returns the members of a request that say which process, and which start of it, it is for."""
    ids: dict[str, Any] = {"processId": queue.id}
    return ids if queue.incarnation is None else {**ids, "incarnation": queue.incarnation}


class Reporter(Protocol):
    """What a queue needs of the session."""

    def report_consumed(self, process_id: str, seq: int, incarnation: int | None = None) -> None:
        """Tells the server that everything up to `seq` is consumed; without an incarnation, of whichever runs now."""

    def read_for(self, queue: EventQueue, after: int) -> None:
        """Sends `process/read`, and hands its outcome to the queue."""

    def abandon_queue(self, queue: EventQueue) -> None:
        """Removes the queue of a process whose id another one has now, and discards the output of that one."""


class Consumer:
    """A position in the events of a process."""

    __slots__ = ("next", "waiter")

    def __init__(self, next: int) -> None:
        #: An index; the queue has those from `removed` on.
        self.next = next
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wakes the consumer, which then looks for events."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class EventQueue:
    """The events of one process, in order and exactly once."""

    def __init__(
        self, process_id: str, session: Reporter, retain_bytes: int | None, *, is_close_announced: bool = True
    ) -> None:
        self.id = process_id
        self._retain_bytes = retain_bytes
        #: Whether the server reports the close; in the oldest dialect, silence after the exit stands for it.
        self._is_close_announced = is_close_announced
        #: How long the next read waits for output.
        self.wait_ms: int | None = None
        self._reads = 0
        #: How many handles share it.
        self.handles = 1
        self.exit: tuple[int, Exit] | None = None
        self.closed: Closed | None = None
        self.failed: RemexError | None = None
        self.last_output = time.monotonic()
        #: How much a read asks for: less after one that was interrupted, so that a bad network can carry it.
        self.read_bytes = WINDOW_BYTES
        #: The last event that has left the queue.
        self.removed_seq = 0
        self._session = session
        self._replay = Replay()
        self._queue: deque[Event] = deque()
        self._queued_bytes = 0
        self._removed = 0
        self._consumers: list[Consumer] = []
        #: Whether events are kept for the first consumer, which is still to come.
        self._awaits_consumer = True
        self._unreported_bytes = 0
        self._unreported_events = 0
        window = WINDOW_BYTES if retain_bytes is None else min(WINDOW_BYTES, retain_bytes)
        self._report_bytes = window // 4
        #: The first event that was streamed on this connection; the server streams all later ones as well.
        self._live_from: int | None = None
        self._is_started = False
        #: The start of the process that requests are for, if the server has told it.
        self.incarnation: int | None = None
        #: Whether the process may have been restarted, so that what is streamed may be of another one, until a read
        #: shows that it was not.
        self._is_unconfirmed = False
        self._read_after = 0
        #: How many reads in a row lacked the next event.
        self._idle_reads = 0
        #: Whether events with the id are those of this process.
        self._follows = True
        #: How many restarts of the process are unanswered.
        self._restarts = 0
        #: Whether another process has the id now.
        self.is_replaced = False
        #: Whether this connection streams the rest of it and its close, even if it is restarted.
        self._is_streamed = False
        #: Whether this connection has streamed its close.
        self._is_close_streamed = False

    # Called by the session.

    def on_started(self, has_history: bool, incarnation: int | None) -> None:
        """Records that the process runs; with `has_history`, it may have output that was not streamed here."""
        self._is_started = True
        self.incarnation = incarnation
        self._is_unconfirmed = has_history and incarnation is not None
        if has_history:
            self._interrupt()
        if not self._is_unconfirmed:
            self._deliver(None)
        self._act()

    def on_output(self, chunk: Chunk, incarnation: int | None = None) -> None:
        """Handles output, which is nearly always simply the next event."""
        seq, queue = chunk.seq, self._queue
        is_open = self._follows and not self.is_replaced and self.failed is None and self.closed is None
        # Not a call of `_is_full`, which takes longer than the comparison.
        has_room = self._queued_bytes < _QUEUE_BYTES and len(queue) < _QUEUE_EVENTS
        if is_open and has_room and not self._is_unconfirmed and self._replay.pass_through(seq):
            if self._live_from is None:
                self._live_from = seq
                self._is_streamed = True
            self.last_output = time.monotonic()
            queue.append(chunk)
            self._queued_bytes += len(chunk.data)
            for consumer in self._consumers:
                if consumer.waiter is not None:
                    consumer.wake()
            if not (self._awaits_consumer or self._consumers):
                self._drop_consumed()
                self._act()
        else:
            self.on_event(chunk, incarnation)

    def on_event(self, event: Event, incarnation: int | None = None) -> None:
        """Handles a notification, which names the incarnation of a process that can be restarted."""
        if not self._follows or self.has_ended:
            return
        # What names none may be of another one after a disconnect.
        self._is_streamed |= incarnation is not None or not self._is_unconfirmed
        self._is_close_streamed |= isinstance(event, Closed)
        if self._is_full():
            if self.is_replaced:
                self.fail(restarted(self.id))
            else:
                # Only a server of the base dialect sends beyond the window. A read fetches it later.
                self._interrupt()
            return
        if self._live_from is None:
            self._live_from = event.seq
        if isinstance(event, Chunk):
            self.last_output = time.monotonic()
        had_exited = self.exit is not None
        self._replay.feed(event)
        if not self._is_unconfirmed:
            self._deliver(None)
        if not had_exited and self._awaits_silence() and self._reads == 0:
            self._interrupt()
        self._act()

    def on_read(self, reply: Mapping[str, Any] | None, error: RemexError | None) -> None:
        """Handles the outcome of a read."""
        self._reads -= 1
        listened, self.wait_ms = self.wait_ms is not None, None
        if self.failed is not None:
            return
        if not self._follows:
            self._interrupt()
            return
        named = None if reply is None else number_or_none(reply.get("incarnation"))
        if named is not None and self.incarnation not in (None, named):
            reply, error = None, restarted(self.id)
        if reply is not None:
            self._is_unconfirmed = False
            # The close of one that has closed may have come before it had this queue.
            self._is_streamed |= not reply.get("closed")
            try:
                self._take_read(reply)
                if self._awaits_silence():
                    if listened and not reply["chunks"]:
                        self._close()
                    else:
                        self._interrupt()
            except (KeyError, TypeError, ValueError, AttributeError) as invalid:
                self.on_protocol_error(ProtocolError(f"cannot decode the answer to `process/read`: {invalid}"))
                return
            is_idle = self._replay.is_missing and self._replay.cursor == self._read_after
            self._idle_reads = self._idle_reads + 1 if is_idle else 0
            if self._idle_reads > _MAX_IDLE_READS:
                what = f"the answers to `process/read` lack the event after {self._read_after}"
                self.on_protocol_error(ProtocolError(what))
                return
            self.read_bytes = min(2 * self.read_bytes, WINDOW_BYTES)
        elif isinstance(error, RequestInterrupted):
            self.read_bytes = max(self.read_bytes // 2, _MIN_READ_BYTES)
            self._interrupt()
        elif error is not None and error.is_restarted and self.is_replaced:
            # The rest may be streamed, but nothing that is missing before it.
            if self._is_streamed:
                self._is_unconfirmed = False
                self._replay.feed_read(None, (), self._replay.cursor + 1, is_complete=True)
                self._deliver(None)
            if not self._is_streamed or self._replay.is_missing:
                self.fail(restarted(self.id))
        elif error is not None and error.is_restarted:
            self.fail(restarted(self.id))
            self._session.abandon_queue(self)
            return
        elif is_unknown_process(error) and self._awaits_silence():
            self._close()
        elif error is not None and not (is_unknown_process(error) and self.closed is not None):
            self.fail(error)
        self._act()

    def on_disconnect(self) -> None:
        """Records that events may be missing, and that they may be those of another process."""
        self._interrupt()
        self._is_streamed = self._is_close_streamed = False
        # Without an incarnation, nothing shows that it is another one.
        self._is_unconfirmed = self.incarnation is not None or not self._is_started
        if self._restarts:
            # Until the restart is answered, events may be those of the old process or of the new one.
            self._follows = False

    def on_reconnect(self) -> None:
        """Reads what was missed, and repeats the last report, which may have been lost."""
        if not self._follows:
            return
        if self.failed is not None:
            self._report(AFTER_EVERYTHING)
        elif self.removed_seq > 0:
            self._report(self.removed_seq)
        self._act()

    def on_restarting(self) -> None:
        """Records that a restart of the process was requested."""
        self._restarts += 1

    def on_not_restarted(self) -> None:
        """Continues with the same process: its restart has failed."""
        self._restarts -= 1
        if not self._restarts and not self._follows and not self.is_replaced:
            self._follows = True
            self._interrupt()
            self.on_reconnect()

    def on_replaced(self) -> None:
        """Ends the queue after what has arrived: another process has the id now."""
        self._follows, self.is_replaced = False, True
        if self.closed is None:
            what = f"process `{self.id}` was restarted before all events of the old one had arrived"
            self.fail(restarted(self.id, what))

    def on_succeeded(self) -> bool:
        """Records that another process has the id now; returns whether more events of this one are on their way."""
        if not self._follows or self.has_ended or self.incarnation is None:
            self.on_replaced()
            return False
        self.is_replaced = True
        self._act()
        return not self._is_close_streamed

    @property
    def has_ended(self) -> bool:
        """Whether it takes no more events: all have arrived, or it has failed."""
        return self.failed is not None or self.closed is not None

    @property
    def is_checked(self) -> bool:
        """Whether it learns by a read of its own, if it does not know, that another process has the id."""
        return self.incarnation is None or not self._follows or (not self.has_ended and self._has_room())

    @property
    def confirmed_incarnation(self) -> int | None:
        """The start that is known to have the id."""
        return self.incarnation if self._follows and not self._is_unconfirmed else None

    def may_have(self, incarnation: int) -> bool:
        """Returns whether events of an incarnation are those of this process, as far as can be known yet."""
        return self.incarnation in (None, incarnation) or not self._follows

    def successor(self) -> EventQueue:
        """Returns a queue for the process that replaces this one."""
        return EventQueue(self.id, self._session, self._retain_bytes, is_close_announced=self._is_close_announced)

    def on_protocol_error(self, error: ProtocolError) -> None:
        """Fails after an invalid message about the process; later events are dropped."""
        if self.closed is None:
            self.fail(error)

    def fail(self, error: RemexError) -> None:
        """Ends the queue with an error after what has arrived; nobody takes more, which must block no process."""
        if self.failed is None:
            self.failed = error
            # Without an incarnation, it would be about the process that has the id now.
            if self.closed is None and (self._follows or self.incarnation is not None):
                self._report(AFTER_EVERYTHING)
        self._wake()

    # Called by consumers.

    def on_polled(self, seq: int) -> None:
        """Records that a caller of `process/read` has all events up to `seq`; matters until there is a consumer."""
        if self._awaits_consumer and seq > self.removed_seq:
            while self._queue and self._queue[0].seq <= seq:
                self._remove_first()
            if self._follows:
                self._report(seq)

    def subscribe(self, after: int) -> Consumer:
        """Adds a consumer of the events after `after`; it has to read those up to `removed_seq` itself."""
        skipped = 0
        for event in self._queue:
            if event.seq > after:
                break
            skipped += 1
        consumer = Consumer(self._removed + skipped)
        self._consumers.append(consumer)
        self._awaits_consumer = False
        return consumer

    def subscribe_at_end(self) -> Consumer:
        """Adds a consumer of future events; unread output no longer waits for a first consumer."""
        consumer = Consumer(self._removed + len(self._queue))
        self._consumers.append(consumer)
        self.release()
        return consumer

    def release(self) -> None:
        """Stops keeping events for a first consumer."""
        self._awaits_consumer = False
        self._drop_consumed()
        self._act()

    def unsubscribe(self, consumer: Consumer) -> None:
        """Removes a consumer, which lifts its backpressure."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            self._drop_consumed()
            self._act()

    def take(self, consumer: Consumer) -> Event | None:
        """Takes the next event; None if there is none yet, and after the last one."""
        at = consumer.next - self._removed
        if at >= len(self._queue):
            if self.failed is not None:
                raise self.failed.with_traceback(None)
            return None
        event = self._queue[at]
        consumer.next += 1
        if at == 0:
            if len(self._consumers) == 1 and self._consumers[0] is consumer:
                self._remove_first()
            else:
                self._drop_consumed()
            self._act()
        return event

    async def wait(self, consumer: Consumer) -> None:
        """Waits until there may be something to take."""
        if consumer.next - self._removed < len(self._queue) or self.failed or self.closed:
            return
        consumer.waiter = asyncio.get_running_loop().create_future()
        try:
            await consumer.waiter
        finally:
            consumer.waiter = None

    # Internal.

    def _awaits_silence(self) -> bool:
        return not self._is_close_announced and self.exit is not None and self.closed is None

    def _close(self) -> None:
        """Closes a process whose server does not report the close."""
        self._push(Closed(self._replay.cursor + 1, None, None))
        self._drop_consumed()
        self._wake()

    def _interrupt(self) -> None:
        self._replay.interrupt()
        self._live_from = None

    def _is_full(self) -> bool:
        return self._queued_bytes >= _QUEUE_BYTES or len(self._queue) >= _QUEUE_EVENTS

    def _has_room(self) -> bool:
        return self._queued_bytes < _QUEUE_BYTES // 2 and len(self._queue) < _QUEUE_EVENTS // 2

    def _take_read(self, reply: Mapping[str, Any]) -> None:
        chunks = [decode_chunk(chunk) for chunk in reply["chunks"]]
        gap = None if reply.get("gap") is None else decode_gap(reply["gap"])
        next_seq = number(reply, "nextSeq")
        exit = decode_exit(reply) if reply.get("exited") else None
        closed = decode_closed(0, reply) if reply.get("closed") else None
        if chunks:
            self.last_output = time.monotonic()
        # A limited read does not tell whether an exit follows its last chunk.
        is_complete = not chunks or (self._live_from is not None and next_seq >= self._live_from)
        self._replay.feed_read(gap, chunks, next_seq, is_complete)
        self._deliver((exit, closed))

    def _deliver(self, state: tuple[Exit | None, Closed | None] | None) -> None:
        for step in self._replay.ready():
            if isinstance(step, Unlisted):
                self._push_state(step, state or (None, None))
            else:
                self._push(step)
        self._drop_consumed()
        self._wake()

    def _push_state(self, unlisted: Unlisted, state: tuple[Exit | None, Closed | None]) -> None:
        """Makes events from the exit and the close, which a read reports as state."""
        exit = state[0] if self.exit is None else None
        closed = state[1] if self.closed is None else None
        seq, to_seq = unlisted
        # Further numbers are output that a server of the base dialect has dropped.
        surplus = to_seq + 1 - seq - (exit is not None) - (closed is not None)
        if surplus > 0:
            self._push(Gap(seq, seq + surplus - 1, None))
            seq += surplus
        if exit is not None and seq <= to_seq:
            self._push(Exited(seq, exit))
            seq += 1
        if closed is not None and seq <= to_seq:
            self._push(Closed(seq, closed.produced, closed.evicted_bytes))

    def _push(self, event: Event) -> None:
        if isinstance(event, Chunk):
            self._queued_bytes += len(event.data)
        elif isinstance(event, Exited):
            self.exit = (event.seq, event.exit)
        elif isinstance(event, Closed):
            self.closed = event
        self._queue.append(event)

    def _drop_consumed(self) -> None:
        if self._awaits_consumer:
            return
        end = self._removed + len(self._queue)
        slowest = min((consumer.next for consumer in self._consumers), default=end)
        while self._removed < slowest:
            self._remove_first()

    def _remove_first(self) -> None:
        event = self._queue.popleft()
        self._removed += 1
        self.removed_seq = event.seq
        self._unreported_events += 1
        if isinstance(event, Chunk):
            self._queued_bytes -= len(event.data)
            self._unreported_bytes += len(event.data)

    def _act(self) -> None:
        """Sends reports and reads that are due."""
        if not self._follows:
            return
        is_much = self._unreported_bytes >= self._report_bytes or self._unreported_events >= WINDOW_EVENTS // 4
        # The window of the server may be smaller than this client's threshold; it would wait forever.
        is_all = not self._queue and self.closed is None
        if self._unreported_events and (is_much or is_all):
            self._unreported_bytes = self._unreported_events = 0
            self._report(self.removed_seq)
        if self.is_replaced and self._awaits_consumer and not self.has_ended and self._replay.latest > 0:
            # The new process must not wait until somebody reads this one.
            self._report(self._replay.latest)
        if self._replay.is_missing and self._is_started and not self.has_ended and self._has_room():
            after = self._replay.wanted_read()
            if after is not None:
                self._read_after = after
                self._reads += 1
                self.wait_ms = _SILENCE_MS if self._awaits_silence() else None
                self._session.read_for(self, after)

    def _report(self, seq: int) -> None:
        self._session.report_consumed(self.id, seq, self.incarnation)

    def _wake(self) -> None:
        for consumer in self._consumers:
            if consumer.waiter is not None:
                consumer.wake()
