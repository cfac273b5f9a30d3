"""Files of the remote host as text. Start at `RemoteTextReader` and `RemoteTextWriter`."""

from __future__ import annotations

import codecs
import io
from types import TracebackType

from ._transfer import RemoteReader, RemoteWriter

#: How much text is decoded at once.
_BLOCK = 256 << 10


class RemoteTextReader:
    """A text file of the remote host, opened for reading: `async with host.files.open(path, "r") as file`.

    Line ends become `\\n`, as with `open` of Python. Iterate over its lines.
    """

    def __init__(self, file: RemoteReader, encoding: str, errors: str) -> None:
        self._file = file
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        #: Decoded text; what is not read yet begins at `_at`.
        self._text = ""
        self._at = 0
        self._has_ended = False

    async def __aenter__(self) -> RemoteTextReader:
        await self._file.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._file.__aexit__(kind, error, trace)

    async def read(self, n: int = -1) -> str:
        """Reads up to `n` characters, less only at the end; without `n`, everything up to the end."""
        parts: list[str] = []
        try:
            while n != 0:
                part = self._take(len(self._text) if n < 0 else min(self._at + n, len(self._text)))
                parts.append(part)
                n = n if n < 0 else n - len(part)
                if n == 0 or self._has_ended:
                    break
                await self._more()
        except BaseException:
            self._give_back(parts)
            raise
        return "".join(parts)

    async def readline(self) -> str:
        """Reads a line with its end; less at the end of the file."""
        parts: list[str] = []
        try:
            while True:
                end = self._text.find("\n", self._at) + 1
                parts.append(self._take(end or len(self._text)))
                if end or self._has_ended:
                    return "".join(parts)
                await self._more()
        except BaseException:
            self._give_back(parts)
            raise

    def __aiter__(self) -> RemoteTextReader:
        return self

    async def __anext__(self) -> str:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    def _take(self, end: int) -> str:
        text, self._at = self._text[self._at : end], min(end, len(self._text))
        return text

    def _give_back(self, parts: list[str]) -> None:
        """Undoes a read that failed or was cancelled."""
        self._text, self._at = "".join(parts) + self._text[self._at :], 0

    async def _more(self) -> None:
        data = await self._file.read(_BLOCK)
        text = self._decoder.decode(data, final=not data)
        self._text, self._at = self._text[self._at :] + text, 0
        self._has_ended = not data


class RemoteTextWriter:
    """A text file of the remote host, opened for writing: `async with host.files.open(path, "w") as file`."""

    def __init__(self, file: RemoteWriter, encoding: str, errors: str) -> None:
        self._file = file
        self._encoder = codecs.getincrementalencoder(encoding)(errors)

    async def __aenter__(self) -> RemoteTextWriter:
        await self._file.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._file.__aexit__(kind, error, trace)

    async def write(self, text: str) -> int:
        """Writes; returns the number of characters."""
        await self._file.write(self._encoder.encode(text))
        return len(text)
