"""Time limits whose errors are told apart from those of the work itself. Start at `limited`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ._errors import RemexError, TimedOutError

T = TypeVar("T")


async def limited(work: Awaitable[T], seconds: float | None, late: str, *, is_call: bool = False) -> T:
    """Waits for some work for up to `seconds`; without them, as long as it takes.

    `late` is the beginning of the message of the `TimedOutError`, which the time completes.
    """
    try:
        return await asyncio.wait_for(work, seconds)
    except RemexError:
        # From Python 3.11 on, a `TimedOutError` of the work is an `asyncio.TimeoutError`, too.
        raise
    except asyncio.TimeoutError:
        raise TimedOutError(f"{late} {seconds:g} s", is_call=is_call) from None
