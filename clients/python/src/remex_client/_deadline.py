"""Timeouts that are not confused with errors of the work itself. Start at `limited`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ._errors import RemexError, TimedOutError

T = TypeVar("T")


async def limited(work: Awaitable[T], seconds: float | None, late: str, *, is_call: bool = False) -> T:
    """Waits for some work, for up to `seconds` if they are given.

    `late` is the message of the `TimedOutError` up to the number of seconds.
    """
    try:
        return await asyncio.wait_for(work, seconds)
    except RemexError:
        # Since Python 3.11, a `TimedOutError` raised by the work is an `asyncio.TimeoutError` as well.
        raise
    except asyncio.TimeoutError:
        raise TimedOutError(f"{late} {seconds:g} s", is_call=is_call) from None
