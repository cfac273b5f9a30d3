"""Restarting processes: the id stays, and events begin again at 1. Start at `restart`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ._codec import milliseconds
from ._errors import RemexError, decoding
from ._event import number_or_none, optional_number
from ._queue import EventQueue
from ._session import Session


async def restart(
    session: Session,
    ids: Mapping[str, Any],
    grace: float,
    new: EventQueue | None = None,
    on_restarted: Callable[[EventQueue, int | None], None] = lambda queue, pid: None,
) -> tuple[int | None, int | None]:
    """Ends a process and starts it again, exactly once across disconnects; returns the new pid and incarnation.

    A process of this session gets the queue `new`; without it, output of the new process is discarded. `on_restarted`
    gets that queue and the pid before any event of the new process is handled, even if the caller was cancelled.
    """
    process_id: str = ids["processId"]
    is_own = session.is_own(ids.get("sessionId"))
    params = {**ids, "graceMs": milliseconds(grace, "grace"), "restartId": session.name("s")}
    old: EventQueue | None = None

    def on_answer(reply: Any, error: RemexError | None) -> None:
        if error is not None:
            if old is not None:
                old.on_not_restarted()
        elif is_own:
            pid, incarnation = number_or_none(reply.get("pid")), number_or_none(reply.get("incarnation"))
            current = session.queues.get(process_id)
            if current is not None and incarnation is not None and current.incarnation == incarnation:
                # Two restarts at the same time have had one outcome.
                if new is not None:
                    current.handles += 1
                    on_restarted(current, pid)
                return
            replayed = bool(reply.get("replayed"))
            if replayed and incarnation is not None and current is not None and current is not old:
                # The answer is late: a later restart has put that one in its place.
                return
            # Older servers, which tell no incarnation, stream nothing of the old process after this answer.
            session.replace_queue(process_id, new, incarnation, has_rest=incarnation is not None)
            if (queue := session.queues.get(process_id)) is not None:
                queue.on_started(replayed, incarnation)
            if new is not None:
                on_restarted(new, pid)

    _, answer = await session.enqueue("process/restart", params, on_answer=on_answer)
    if is_own and (old := session.queues.get(process_id)) is not None:
        old.on_restarting()
    # Cancelling this does not cancel the request: the server completes a restart, and handles must learn of it.
    reply = await answer
    with decoding("process/restart"):
        return optional_number(reply, "pid"), optional_number(reply, "incarnation")
