"""Output for a language model: without control sequences, and truncated to a budget. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The longest line that can still be overwritten.
_MAX_LINE = 16 << 10

#: Control sequences, complete or truncated at the end: CSI, OSC, other strings, and those of two bytes.
_SEQUENCE = re.compile(
    rb"\x1b(?:"
    rb"\[([0-?]*)[ -/]*([@-~])"
    rb"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    rb"|[PX^_][^\x1b]*\x1b\\"
    rb"|[ -/]*[0-OQ-WYZ\\`-~]"
    rb")"
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)?\Z")
_MAX_UNFINISHED = 64 << 10
_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class TruncatedText:
    """Text within a budget: the beginning and the end, with a notice in place of what is left out."""

    text: str
    #: How many bytes are left out.
    omitted_bytes: int = 0
    #: How many bytes there were.
    total_bytes: int = 0
    #: Whether more than `omitted_bytes` may be missing, because the server no longer knows the size of a gap.
    at_least: bool = False


class Truncator:
    """Keeps the beginning and the end of output, in memory of twice the budget."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._head = bytearray()
        self._tail = bytearray()
        self._has_gap = self._is_gap_unknown = False
        self.total_bytes = 0

    def push(self, data: bytes) -> None:
        """Adds output."""
        self.total_bytes += len(data)
        room = 0 if self._has_gap else self._budget - len(self._head)
        self._head += data[:room]
        rest = data[room:]
        if rest:
            self._tail += rest[-self._budget :] if self._budget else b""
            del self._tail[: max(0, len(self._tail) - self._budget)]

    def skip(self, size: int | None) -> None:
        """Records lost output."""
        if size != 0:
            self.total_bytes += size or 0
            self._has_gap = True
            self._is_gap_unknown = self._is_gap_unknown or size is None
            self._tail.clear()

    def finish(self, budget: int | None = None) -> TruncatedText:
        """Returns the text, within a budget of at most the first one."""
        budget = self._budget if budget is None else min(budget, self._budget)
        total, at_least = self.total_bytes, self._is_gap_unknown
        if not self._has_gap and total == len(self._head):
            text = self._head.decode("utf-8", "replace")
            if len(text.encode()) <= budget:
                return TruncatedText(text, 0, total)
        # A newline may be needed before and after the notice.
        room = budget - len(_notice(total, at_least).encode()) - 2
        if room < 0:
            return TruncatedText(_notice(total, at_least), total, total, at_least)
        head = _beginning(bytes(self._head), room // 2)
        last = bytes(self._tail) if self._has_gap else bytes(self._head[len(head) :] + self._tail)
        tail = _end(last, room - len(head.decode("utf-8", "replace").encode()))
        omitted = total - len(head) - len(tail)
        before = "" if not head or head.endswith(b"\n") else "\n"
        text = head.decode("utf-8", "replace") + before + _notice(omitted, at_least) + "\n"
        return TruncatedText(text + tail.decode("utf-8", "replace"), omitted, total, at_least)


class Cleaner:
    """Removes control sequences from one stream that arrives in pieces.

    A line that a carriage return, a backspace or an erasure overwrites, such as a progress bar, appears as it was last.
    """

    def __init__(self) -> None:
        self._unfinished = b""
        self._line = bytearray()
        self._column = 0

    def push(self, data: bytes) -> bytes:
        """Returns the lines that are complete."""
        data = self._unfinished + data
        self._unfinished = b""
        unfinished = _UNFINISHED.search(data)
        if unfinished is not None and len(data) - unfinished.start() <= _MAX_UNFINISHED:
            data, self._unfinished = data[: unfinished.start()], data[unfinished.start() :]
        out = bytearray()
        at = 0
        for sequence in _SEQUENCE.finditer(data):
            self._write(data[at : sequence.start()], out)
            self._apply(sequence.group(2), sequence.group(1))
            at = sequence.end()
        self._write(data[at:], out)
        return bytes(out)

    def finish(self) -> bytes:
        """Returns the last line, which has no end."""
        line, self._line, self._column = bytes(self._line), bytearray(), 0
        return line

    def _write(self, text: bytes, out: bytearray) -> None:
        *lines, rest = text.split(b"\n")
        for line in lines:
            self._write_part(line)
            out += self._line + b"\n"
            self._line.clear()
            self._column = 0
        self._write_part(rest)
        if len(self._line) > _MAX_LINE:
            out += self._line
            self._line.clear()
            self._column = 0

    def _write_part(self, text: bytes) -> None:
        for index, part in enumerate(re.split(rb"([\r\x08])", text)):
            if index % 2:
                self._column = 0 if part == b"\r" else self._back()
            elif part := _CONTROLS.sub(b"", part):
                self._line[self._column : self._column + len(part)] = part
                self._column += len(part)

    def _back(self) -> int:
        column = max(0, self._column - 1)
        while column > 0 and self._line[column] & 0xC0 == 0x80:
            column -= 1
        return column

    def _apply(self, final: bytes | None, parameter: bytes | None) -> None:
        if final == b"G" and parameter in (b"", b"0", b"1"):
            self._column = 0
        elif final == b"K" and parameter in (b"", b"0"):
            del self._line[self._column :]
        elif final == b"K" and parameter == b"1":
            self._line[: self._column] = b" " * min(self._column, len(self._line))
        elif final == b"K" and parameter == b"2":
            self._line[:] = b" " * self._column


def _notice(omitted: int, at_least: bool) -> str:
    noun = "byte" if omitted == 1 else "bytes"
    return f"[… {'more than ' if at_least else ''}{omitted} {noun} omitted …]"


def _fits(raw: bytes) -> int:
    return len(raw.decode("utf-8", "replace").encode())


def _beginning(data: bytes, room: int) -> bytes:
    """Returns the beginning of data, up to the end of a line if one is near."""
    if _fits(data) <= room:
        return data
    part = data[:room]
    # Never within a character; bytes that are replaced take more room than before.
    part = part[: len(part) - _cut_off(part)]
    while _fits(part) > room:
        part = part[: -max(1, (_fits(part) - room) // 3)]
    at = part.rfind(b"\n") + 1
    return part[:at] if at and len(part) - at <= room // 4 else part


def _end(data: bytes, room: int) -> bytes:
    """Returns the end of data, from the beginning of a line if one is near."""
    start = max(0, len(data) - room)
    while start < len(data) and start > 0 and data[start] & 0xC0 == 0x80 and start > len(data) - room - 4:
        start += 1
    while _fits(data[start:]) > room:
        start += max(1, (_fits(data[start:]) - room) // 3)
    if start == 0 or data[start - 1 : start] == b"\n":
        return data[start:]
    at = data.find(b"\n", start) + 1
    return data[at:] if 0 < at < len(data) and at - start <= room // 4 else data[start:]


def _cut_off(part: bytes) -> int:
    """Returns how many bytes at the end are the beginning of a character."""
    for back in range(1, min(4, len(part)) + 1):
        byte = part[-back]
        if byte & 0xC0 != 0x80:
            wanted = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back if wanted > back else 0
    return 0
