"""Notifications of watches, streamed bodies and observed sessions. Start at `Route`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from ._errors import RemexError, RequestInterrupted

#: How much may wait for its consumer.
_ROUTE_ITEMS = 4096
_ROUTE_BYTES = 4 << 20

RouteKey = tuple[Literal["watch", "http", "session"], int | str]


class Route:
    """The notifications for a watch, a streamed body or an observed session; it ends with the connection.

    The server does not wait for watchers and observers. One that falls too far behind is treated as after a disconnect:
    it starts again, and learns that something is missing.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._items: deque[tuple[Mapping[str, Any] | RemexError, int]] = deque()
        self._bytes = 0
        self._has_ended = False
        self._arrived = asyncio.Event()

    def push(self, item: Mapping[str, Any], size: int = 0) -> None:
        """Adds a notification of about this size."""
        if self._has_ended:
            return
        if len(self._items) >= _ROUTE_ITEMS or self._bytes >= _ROUTE_BYTES:
            self.interrupt()
            return
        self._items.append((item, size))
        self._bytes += size
        self._arrived.set()

    def interrupt(self) -> None:
        """Ends the route as a disconnect does."""
        self.end(RequestInterrupted(self._method))

    def end(self, error: RemexError) -> None:
        """Ends the route; the error follows what has arrived."""
        if not self._has_ended:
            self._has_ended = True
            self._items.append((error, 0))
            self._arrived.set()

    async def next(self) -> Mapping[str, Any]:
        """Waits for the next notification; after the last, always raises the error that ended the route."""
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        item, size = self._items[0]
        if isinstance(item, RemexError):
            raise item.with_traceback(None)
        self._items.popleft()
        self._bytes -= size
        return item
