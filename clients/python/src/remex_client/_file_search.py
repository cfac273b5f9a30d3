"""Searching the files of the remote host. Start at `search_files`, which gives a `SearchResult`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import models
from ._codec import milliseconds, path_from_wire
from ._errors import UsageError, decoding
from ._event import number, optional_number
from ._session import Session

#: What a search returns of each file.
SearchReport = Literal["lines", "counts", "files"]


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line of a file, without its end; bytes that are not UTF-8 are replaced."""

    #: From 1.
    number: int
    text: str
    #: Whether it matches; false for the context of a match.
    is_match: bool = True
    #: How many bytes of a long line are left out before and after the text.
    omitted_before: int = 0
    omitted_after: int = 0


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that a search has found."""

    path: str
    #: How many of its lines match, as far as it was searched.
    count: int
    #: The matching lines and their context, with the report `lines`.
    lines: tuple[FoundLine, ...] = ()


@dataclass(frozen=True)
class SearchResult:
    """What a search has found, and what it has left out."""

    #: Depth first, each directory in the byte order of its names.
    files: tuple[FoundFile, ...]
    #: How many files were searched.
    searched: int
    #: How many files and directories were left out: excluded by ignore files, or those of version control.
    ignored: int
    #: How many files were not searched because they are binary, and the first of them.
    binary: int
    binary_files: tuple[str, ...]
    #: Pairs of path and message for up to 50 files and directories that were not searched completely.
    errors: tuple[tuple[str, str], ...]
    #: The limit that ended the search, if one did: `items`, `bytes`, `time`, `entries`, or a word of a newer server.
    truncated: str | None
    #: How many matching lines are here, or files if no lines were asked for. To continue a search that `items` or
    #: `bytes` ended, add it to `skip`.
    returned: int

    @property
    def is_complete(self) -> bool:
        """Whether no limit ended the search and everything could be read."""
        return self.truncated is None and not self.errors


async def search_files(
    session: Session,
    path: str,
    pattern: str | None,
    report: SearchReport,
    globs: Sequence[str],
    timeout: float,
    options: Mapping[str, Any],
) -> SearchResult:
    """Searches a file, or the files below a directory; `options` are the remaining ones, as on the wire."""
    if pattern is not None and not isinstance(pattern, str):
        raise TypeError(f"the pattern of a search cannot be of the type `{type(pattern).__name__}`: give text")
    if isinstance(globs, str | bytes):
        raise TypeError(f"`globs` cannot be of the type `{type(globs).__name__}`: give a list of them")
    if report not in ("lines", "counts", "files"):
        raise UsageError(f"cannot report {report!r} of a search", "use `lines`, `counts` or `files`")
    asked: dict[str, Any] = {
        "pattern": pattern,
        "report": report,
        "globs": list(globs) or None,
        "timeoutMs": milliseconds(timeout, "timeout"),
        **options,
    }
    params = {"path": path, "options": {name: value for name, value in asked.items() if value is not None}}
    # The search has its own timeout, after which it returns what it has found.
    reply: models.FsSearchResult = await session.call("fs/search", params, timeout=False)
    with decoding("fs/search"):
        files = tuple(map(_file, reply["files"]))
        has_lines = report == "lines" and pattern is not None
        return SearchResult(
            files=files,
            searched=number(reply, "searched"),
            ignored=number(reply, "ignored"),
            binary=number(reply, "binary"),
            binary_files=tuple(map(path_from_wire, reply.get("binaryFiles") or ())),
            errors=tuple((path_from_wire(error["path"]), error["message"]) for error in reply.get("errors") or ()),
            truncated=reply.get("truncated"),
            returned=sum(line.is_match for file in files for line in file.lines) if has_lines else len(files),
        )


def _file(found: models.FsFoundFile) -> FoundFile:
    return FoundFile(path_from_wire(found["path"]), number(found, "count"), tuple(map(_line, found.get("lines") or ())))


def _line(line: models.FsFoundLine) -> FoundLine:
    return FoundLine(
        number=number(line, "number"),
        text=str(line["text"]),
        is_match=line.get("isMatch") is not False,
        omitted_before=optional_number(line, "omittedBefore") or 0,
        omitted_after=optional_number(line, "omittedAfter") or 0,
    )
