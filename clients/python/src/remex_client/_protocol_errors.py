"""How often a server may break the protocol. Start at `ProtocolErrors`."""

from __future__ import annotations

import time

#: How many invalid messages within how many seconds end the session.
_MAX_ERRORS = 8
_WITHIN = 60.0


class ProtocolErrors:
    """Counts the invalid messages of a session."""

    def __init__(self) -> None:
        self._count = 0
        self._first = 0.0

    def add(self) -> None:
        """Counts one that has just arrived."""
        now = time.monotonic()
        if now - self._first > _WITHIN:
            self._first, self._count = now, 0
        self._count += 1

    @property
    def are_too_many(self) -> bool:
        """Whether the session must end."""
        return self._count >= _MAX_ERRORS
