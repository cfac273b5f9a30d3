"""How a transfer goes on after disconnects. Start at `Retries`."""

from __future__ import annotations

from ._errors import RequestInterrupted, is_kind

#: The length of a block, and how many are in flight.
BLOCK = 256 << 10
WINDOW = 4

#: How many disconnects without progress a transfer survives.
_MAX_RETRIES = 16

#: The length of a block on a network whose connections do not last for a longer one.
_MIN_BLOCK = 8 << 10


class Retries:
    """Counts disconnects since the last progress, and says how long blocks are and how many may be in flight."""

    def __init__(self) -> None:
        self._count = 0
        #: How many blocks the connection has carried.
        self._carried = 0
        #: One after a disconnect, so that a connection that lasts for a block only is enough to make progress.
        self.window = WINDOW
        #: Less after connections that did not last for a block.
        self.block = BLOCK

    def note(self, error: BaseException) -> None:
        """Raises the error unless it is that of a disconnect, and there were not too many."""
        is_disconnect = isinstance(error, RequestInterrupted) or is_kind(error, "unknownHandle")
        if not is_disconnect or self._count >= _MAX_RETRIES:
            raise error
        if self._carried == 0:
            self.block = max(self.block // 2, _MIN_BLOCK)
        self._count, self._carried, self.window = self._count + 1, 0, 1

    def progress(self) -> None:
        """Records that the connection has carried a block."""
        self._count, self._carried, self.window = 0, self._carried + 1, min(self.window + 1, WINDOW)
        if self._carried % WINDOW == 0:
            self.block = min(2 * self.block, BLOCK)
