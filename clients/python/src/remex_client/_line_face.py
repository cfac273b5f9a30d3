"""Lines without await. Start at `LineFace`."""

from __future__ import annotations

from collections.abc import Iterator

from ._lines import Line, LineBatch, Lines
from ._portal import Face, take_arrived


class LineFace(Face[Lines]):
    """Takes whole events from the thread of the event loop, and makes their lines in that of the caller.

    Objects that wait for another thread by the thousand would be a burden for the garbage collector.
    """

    def __iter__(self) -> Iterator[Line]:
        while True:
            texts, origin = self._inner._current
            line = Line()
            line._origin = origin
            # Nothing can interrupt this between a text and its line.
            for line.text in texts:
                yield line
                line = Line()
                line._origin = origin
            if not self._advance(texts):
                return

    def __next__(self) -> Line:
        for line in self:
            return line
        raise StopIteration

    def batches(self) -> Iterator[LineBatch]:
        """Returns the lines without an object for each, which takes about a third less time.

        All loops over this object share its lines, whichever way they take them.

            for batch in process.lines().batches():
                for text in batch.texts:
                    ...
        """
        while True:
            texts, origin = self._inner._current
            if rest := list(texts):
                yield LineBatch(rest, *origin)
            if not self._advance(texts):
                return

    def _advance(self, used: Iterator[str]) -> bool:
        # Another thread is needed only once nothing is left of what has arrived.
        return self._inner._advance_arrived(used) or self._run(_advance(self._inner, used))


async def _advance(lines: Lines, used: Iterator[str]) -> bool:
    if not await lines._advance(used):
        return False
    await take_arrived(lines._take_arrived)
    return True
