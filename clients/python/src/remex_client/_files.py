"""Files of the remote host. Start at `Files`."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from . import models
from ._codec import StrPath, bytes_of, epoch_milliseconds, path_from_wire
from ._errors import (
    UNKNOWN_METHOD,
    NotFoundError,
    ProtocolError,
    RefusedError,
    RequestInterrupted,
    UsageError,
    decoding,
    is_kind,
)
from ._file_search import SearchReport, SearchResult, search_files
from ._options import UNSET, Unset
from ._route import Route
from ._session import Session
from ._text_file import RemoteTextReader, RemoteTextWriter
from ._transfer import LocalPath, Progress, RemoteReader, RemoteWriter, download, upload
from ._tree import SkipUnchanged, TreeCopied, download_tree, upload_tree

#: How many entries one request lists.
_PAGE = 10_000


@dataclass(frozen=True)
class Metadata:
    """What is at a path, or at the target of a symbolic link. `modified` is in seconds since the Unix epoch."""

    #: `file`, `directory`, `symlink` (only in listings), `fifo`, `socket`, `device`, or a word of a newer server.
    kind: str
    size: int
    is_file: bool
    is_directory: bool
    #: Whether the path itself is a symbolic link.
    is_symlink: bool
    modified_ms: int
    #: The permission bits, with set-user-ID, set-group-ID and sticky.
    permissions: int | None
    uid: int | None
    gid: int | None
    link_target: str | None

    @property
    def modified(self) -> float:
        """When the content last changed, in seconds since the Unix epoch."""
        return self.modified_ms / 1000

    @classmethod
    def from_wire(cls, entry: models.FsMetadata) -> Metadata:
        """Decodes `fs/getMetadata`."""
        try:
            kind = "file" if entry["isFile"] else "directory" if entry["isDirectory"] else "unknown"
            return cls(
                kind=entry.get("kind") or kind,
                size=entry.get("size") or 0,
                is_file=entry["isFile"],
                is_directory=entry["isDirectory"],
                is_symlink=bool(entry.get("isSymlink")),
                modified_ms=entry["modifiedAtMs"],
                permissions=None if (mode := entry.get("mode")) is None else mode & 0o7777,
                uid=entry.get("uid"),
                gid=entry.get("gid"),
                link_target=entry.get("linkTarget"),
            )
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"cannot decode metadata: {error}") from error


@dataclass(frozen=True)
class DirEntry:
    """An entry of a directory. `metadata` is that of the entry itself, if it can be read."""

    name: str
    path: str
    is_file: bool
    is_directory: bool
    is_symlink: bool
    metadata: Metadata | None


@dataclass(frozen=True)
class Walk:
    """The tree below a directory. `truncated` means that a limit ended the list early."""

    #: Pairs of path and `file` or `directory`, breadth first.
    entries: tuple[tuple[str, str], ...]
    #: Pairs of path and message for what cannot be read.
    errors: tuple[tuple[str, str], ...]
    truncated: bool


@dataclass(frozen=True)
class Change:
    """A change of a path: `created`, `modified`, `removed`, or `unknown` (a word of a newer server)."""

    path: str
    kind: str


@dataclass(frozen=True)
class Changes:
    """The net changes since the previous ones. `overflow` means that some are missing: look at everything again."""

    changes: tuple[Change, ...]
    overflow: bool


class Files:
    """The files of the remote host.

    Paths are text, bytes or `PurePosixPath`; a relative one begins at the working directory of the server, and `~` is
    the home directory there. An error of the server is a `RefusedError`, and where it fits also a `FileNotFoundError`,
    `FileExistsError`, `IsADirectoryError`, `PermissionError` or another `OSError`.

        await host.files.write("/srv/motd", b"hello\\n", atomic=True)
        async with host.files.open("/var/log/syslog") as file:
            async for block in file:
                ...
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def _call(self, method: str, **params: Any) -> Any:
        return await self._session.call(method, {key: value for key, value in params.items() if value is not None})

    # Whole files.

    async def read(self, path: StrPath) -> bytes:
        """Returns the content of a file of up to 512 MiB.

        After a disconnect it continues where it was, and raises `ChangedError` if the file has changed meanwhile.
        """
        where = self._session.path(path)
        try:
            return await self._read_whole(where, may_repeat=False)
        except RequestInterrupted:
            pass
        # In one piece, a large file would never arrive over a connection that keeps breaking.
        try:
            async with RemoteReader(self._session, where) as file:
                return await file.read()
        except RefusedError as error:
            if not is_kind(error, "unknownMethod") and error.code != UNKNOWN_METHOD:
                raise
        return await self._read_whole(where, may_repeat=True)

    async def _read_whole(self, path: str, *, may_repeat: bool) -> bytes:
        reply = await self._session.call("fs/readFile", {"path": path}, timeout=False, may_repeat=may_repeat)
        with decoding("fs/readFile"):
            return bytes_of(reply["dataBase64"])

    async def read_text(self, path: StrPath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the content of a file as text."""
        return (await self.read(path)).decode(encoding, errors)

    async def write(
        self,
        path: StrPath,
        data: bytes | bytearray | memoryview,
        *,
        atomic: bool = False,
        if_match: str | Unset = UNSET,
        permissions: int | None = None,
    ) -> str:
        """Replaces the content of a file, or creates it; returns the hash of the new content.

        With `atomic`, every reader finds either the old content or the new. With `if_match`, the content must have this
        hash, as a `write` or `hash` returned it, or the file must be `"absent"`; otherwise the error is
        `contentChanged`, and nothing happens. A new file gets `permissions`, less the umask of the server.
        A file of more than about 48 MiB may not fit into a message: use `open` or `upload`.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"cannot write a value of the type `{type(data).__name__}`: give bytes, or use `write_text`"
            )
        if if_match is not UNSET and not isinstance(if_match, str):
            raise UsageError(
                f"cannot use {if_match!r} as `if_match`: it would replace whatever is there",
                'give a hash, or "absent" for no file, or leave it out',
            )
        content = bytes(data)
        params = {
            "path": self._session.path(path),
            "dataBase64": content,
            "atomic": atomic or None,
            "ifMatch": None if if_match is UNSET else if_match,
            "createMode": permissions,
        }
        await self._session.call("fs/writeFile", {k: v for k, v in params.items() if v is not None}, timeout=False)
        return content_hash(content)

    async def write_text(
        self,
        path: StrPath,
        text: str,
        encoding: str = "utf-8",
        *,
        atomic: bool = False,
        if_match: str | Unset = UNSET,
        permissions: int | None = None,
    ) -> str:
        """Replaces the content of a file with text, as `write` does."""
        return await self.write(path, text.encode(encoding), atomic=atomic, if_match=if_match, permissions=permissions)

    async def hash(self, path: StrPath, *, offset: int | None = None, length: int | None = None) -> str:
        """Returns the hash of a file, or of a part of it: `sha256:` and 64 hexadecimal digits."""
        reply = await self._session.call(
            "fs/hash", _present(path=self._session.path(path), offset=offset, len=length), timeout=False
        )
        with decoding("fs/hash"):
            return str(reply["hash"])

    # Streams.

    @overload
    def open(self, path: StrPath, mode: Literal["rb"] = "rb") -> RemoteReader: ...
    @overload
    def open(self, path: StrPath, mode: Literal["wb", "xb"]) -> RemoteWriter: ...
    @overload
    def open(
        self, path: StrPath, mode: Literal["r", "rt"], *, encoding: str = "utf-8", errors: str = "strict"
    ) -> RemoteTextReader: ...
    @overload
    def open(
        self, path: StrPath, mode: Literal["w", "wt", "x", "xt"], *, encoding: str = "utf-8", errors: str = "strict"
    ) -> RemoteTextWriter: ...
    @overload
    def open(
        self, path: StrPath, mode: str, *, encoding: str = "utf-8", errors: str = "strict"
    ) -> RemoteReader | RemoteWriter | RemoteTextReader | RemoteTextWriter: ...
    def open(
        self, path: StrPath, mode: str = "rb", *, encoding: str = "utf-8", errors: str = "strict"
    ) -> RemoteReader | RemoteWriter | RemoteTextReader | RemoteTextWriter:
        """Opens a file of any size, for `async with`; several blocks are in flight, and memory is constant.

        `rb` reads. `wb` writes beside the file and replaces it at the end of the block, unless an exception ends that;
        `xb` does the same and fails if the file exists. Both survive disconnects. `r`, `w` and `x` are the same for
        text; unlike that of Python, this `open` is for bytes by default.
        """
        is_text = not mode.endswith("b")
        word = mode.removesuffix("t") if is_text else mode.removesuffix("b")
        if word not in ("r", "w", "x"):
            raise UsageError(f"cannot open a file with the mode `{mode}`", "use `rb`, `wb`, `xb`, `r`, `w` or `x`")
        where = self._session.path(path)
        if word == "r":
            reader = RemoteReader(self._session, where)
            return RemoteTextReader(reader, encoding, errors) if is_text else reader
        writer = RemoteWriter(self._session, where, must_be_new=word == "x")
        return RemoteTextWriter(writer, encoding, errors) if is_text else writer

    async def upload(
        self,
        source: LocalPath,
        path: StrPath,
        *,
        permissions: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> int:
        """Copies a local file to the remote host, and returns its size.

        It replaces the destination in one step when everything has arrived, with the time of the source, and with its
        permissions unless others are given. It survives disconnects.
        """
        return await upload(self._session, source, self._session.path(path), permissions, progress)

    async def download(
        self, path: StrPath, destination: LocalPath, *, progress: Callable[[Progress], None] | None = None
    ) -> int:
        """Copies a file of the remote host to a local one, as `upload` does, and returns its size."""
        return await download(self._session, self._session.path(path), destination, progress)

    async def upload_tree(
        self,
        source: LocalPath,
        path: StrPath,
        *,
        skip_unchanged: SkipUnchanged = "sizeAndTime",
        ignore: Callable[[str], bool] | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> TreeCopied:
        """Copies a local directory to the remote host, with permissions, times and symbolic links.

        Files that are the same there, by size and time or by `content`, are skipped, so an interrupted copy continues
        where it stopped. `ignore` is asked about each path relative to the root.
        """
        return await upload_tree(self._session, source, self._session.path(path), skip_unchanged, ignore, progress)

    async def download_tree(
        self,
        path: StrPath,
        destination: LocalPath,
        *,
        skip_unchanged: SkipUnchanged = "sizeAndTime",
        ignore: Callable[[str], bool] | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> TreeCopied:
        """Copies a directory of the remote host to a local one, as `upload_tree` does."""
        return await download_tree(
            self._session, self._session.path(path), destination, skip_unchanged, ignore, progress
        )

    # Names.

    async def metadata(self, path: StrPath, *, follow_symlinks: bool = True) -> Metadata:
        """Returns what is at a path."""
        follow = None if follow_symlinks else False
        return Metadata.from_wire(
            await self._call("fs/getMetadata", path=self._session.path(path), followSymlinks=follow)
        )

    async def exists(self, path: StrPath) -> bool:
        """Returns whether a path exists; a dangling link does not."""
        try:
            await self.metadata(path)
        except NotFoundError:
            return False
        return True

    async def realpath(self, path: StrPath) -> str:
        """Returns the path with all links resolved; it must exist."""
        reply = await self._call("fs/canonicalize", path=self._session.path(path))
        with decoding("fs/canonicalize"):
            return path_from_wire(reply["path"])

    async def remove(self, path: StrPath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Removes a file, a link or an empty directory; with `recursive`, a directory with everything in it."""
        await self._call("fs/remove", path=self._session.path(path), recursive=recursive, force=missing_ok)

    async def copy(self, source: StrPath, destination: StrPath, *, recursive: bool = False) -> None:
        """Copies a file or a link on the host; with `recursive`, a directory with everything in it."""
        await self._call(
            "fs/copy",
            sourcePath=self._session.path(source),
            destinationPath=self._session.path(destination),
            recursive=recursive,
        )

    async def rename(self, source: StrPath, destination: StrPath, *, overwrite: bool = True) -> None:
        """Renames a file or directory within one file system, atomically."""
        await self._call(
            "fs/rename",
            sourcePath=self._session.path(source),
            destinationPath=self._session.path(destination),
            overwrite=None if overwrite else False,
        )

    async def chmod(self, path: StrPath, permissions: int) -> None:
        """Sets the permissions."""
        await self._call("fs/setPermissions", path=self._session.path(path), mode=permissions)

    async def set_times(self, path: StrPath, *, modified: float | None = None, accessed: float | None = None) -> None:
        """Sets times, in seconds since the Unix epoch."""
        await self._call(
            "fs/setTimes",
            path=self._session.path(path),
            modifiedAtMs=epoch_milliseconds(modified),
            accessedAtMs=epoch_milliseconds(accessed),
        )

    async def symlink(self, path: StrPath, target: str | bytes) -> None:
        """Makes a symbolic link at `path` that points to `target`."""
        raw = target if isinstance(target, bytes) else target.encode("utf-8", "surrogateescape")
        await self._call("fs/symlink", path=self._session.path(path), targetBase64=raw)

    async def read_link(self, path: StrPath) -> str:
        """Returns where a symbolic link points."""
        reply = await self._call("fs/readLink", path=self._session.path(path))
        with decoding("fs/readLink"):
            return bytes_of(reply["targetBase64"]).decode("utf-8", "surrogateescape")

    # Directories.

    async def mkdir(self, path: StrPath, *, parents: bool = True) -> None:
        """Makes a directory; with `parents`, also missing directories above it, and no error if it exists."""
        await self._call("fs/createDirectory", path=self._session.path(path), recursive=parents)

    async def listdir(self, path: StrPath) -> list[DirEntry]:
        """Lists a directory, in the byte order of the names."""
        return [entry async for entry in self.iterdir(path)]

    async def iterdir(self, path: StrPath) -> AsyncIterator[DirEntry]:
        """Lists a directory of any size page by page, in the byte order of the names."""
        cursor: str | None = None
        while True:
            page = await self._call(
                "fs/readDirectory", path=self._session.path(path), limit=_PAGE, cursor=cursor, details=True
            )
            with decoding("fs/readDirectory"):
                entries = [_dir_entry(entry) for entry in page["entries"]]
            for entry in entries:
                yield entry
            cursor = page.get("nextCursor")
            if cursor is None:
                return

    async def walk(
        self,
        path: StrPath,
        *,
        max_depth: int = 64,
        max_directories: int = 10_000,
        max_entries: int = 50_000,
        follow_directory_symlinks: bool = False,
        prune_hidden_directories: bool = False,
    ) -> Walk:
        """Lists the tree below a directory in one request."""
        options = {
            "maxDepth": max_depth,
            "maxDirectories": max_directories,
            "maxEntries": max_entries,
            "followDirectorySymlinks": follow_directory_symlinks,
            "pruneHiddenDirectories": prune_hidden_directories,
        }
        reply = await self._call("fs/walk", path=self._session.path(path), options=options)
        with decoding("fs/walk"):
            return Walk(
                entries=tuple((path_from_wire(entry["path"]), entry["kind"]) for entry in reply["entries"]),
                errors=tuple((path_from_wire(error["path"]), error["message"]) for error in reply["errors"]),
                truncated=reply["truncated"],
            )

    async def search(
        self,
        path: StrPath,
        pattern: str | None = None,
        *,
        literal: bool = False,
        ignore_case: bool = False,
        globs: Sequence[str] = (),
        with_ignored: bool = False,
        report: SearchReport = "lines",
        context_before: int = 0,
        context_after: int = 0,
        max_depth: int | None = None,
        skip: int = 0,
        max_items: int = 500,
        max_bytes: int = 256 << 10,
        max_line_bytes: int = 1 << 10,
        timeout: float = 20.0,
    ) -> SearchResult:
        r"""Searches a file, or the files below a directory, as ripgrep does; the host needs no program for that.

            found = await host.files.search("/srv/project", r"fn \w+", globs=["*.rs", "!target"])
            for file in found.files:
                for line in file.lines:
                    print(f"{file.path}:{line.number}: {line.text}")
            if found.truncated:
                print(f"there may be more: the limit of {found.truncated} ended the search")

        - `pattern` is a regular expression of Rust for one line; with `literal`, plain text. Without it, every file is
          found.
        - It follows no links and searches hidden files, but neither binary ones nor, unless `with_ignored`, what
          `.gitignore` and `.ignore` files exclude. The result says how many it has left out.
        - `globs` are those of gitignore with `{a,b}`, for paths below `path`: only files that match one of them, and
          none of those that begin with `!`.
        - `report` is what to return of a file: its `lines`, with `context_before` and `context_after` (up to 100),
          `counts` of them, or nothing but the `files`.
        - A limit ends the search with what it has found, and `truncated` names it: `max_items` lines or files (up to
          10,000), `max_bytes` of text and paths (up to 1 MiB), or `timeout` seconds (up to 120). To continue, repeat it
          with `skip` increased by the `returned` of the result.
        - Of a line, up to `max_line_bytes` (up to 64 KiB) around its first match are returned.
        """
        options = {
            "literal": literal,
            "ignoreCase": ignore_case,
            "withIgnored": with_ignored,
            "contextBefore": context_before,
            "contextAfter": context_after,
            "maxDepth": max_depth,
            "skip": skip,
            "maxItems": max_items,
            "maxBytes": max_bytes,
            "maxLineBytes": max_line_bytes,
        }
        return await search_files(self._session, self._session.path(path), pattern, report, globs, timeout, options)

    async def watch(self, path: StrPath, *, recursive: bool = True) -> Watch:
        """Watches a file or a directory; everything below it, unless `recursive` is false.

            async for changes in await host.files.watch("/srv/project"):
                ...

        After a disconnect it watches again, and reports an `overflow`.
        """
        watch = Watch(self._session, self._session.path(path), recursive)
        await watch._set()
        return watch


class Watch:
    """A watch on files: iterate over its `Changes`."""

    def __init__(self, session: Session, path: str, recursive: bool) -> None:
        self._session = session
        self._path = path
        self._recursive = recursive
        self._id = 0
        self._route = Route("fs/watch")

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Changes:
        if self._id:
            try:
                return _changes(await self._route.next())
            except RequestInterrupted:
                await self.close()
        await self._set()
        return Changes((), True)

    async def close(self) -> None:
        """Stops watching."""
        watch_id, self._id = self._id, 0
        if watch_id and self._session.routes.pop(("watch", watch_id), None) is not None:
            await self._session.call("fs/unwatch", {"watchId": watch_id})

    async def _set(self) -> None:
        while True:
            watch_id = self._session.number()
            route = self._session.routes["watch", watch_id] = Route("fs/watch")
            params = {"watchId": watch_id, "path": self._path, "recursive": self._recursive}
            try:
                await self._session.call("fs/watch", params)
            except RequestInterrupted:
                continue
            except BaseException:
                self._session.routes.pop(("watch", watch_id), None)
                raise
            self._id, self._route = watch_id, route
            return


def content_hash(data: bytes) -> str:
    """Returns the hash of some content, for `Files.write(if_match=…)`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _present(**params: Any) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}


def _dir_entry(entry: models.FsDirectoryEntry) -> DirEntry:
    path = path_from_wire(entry.get("path") or entry["fileName"])
    metadata = entry.get("metadata")
    return DirEntry(
        name=path.rpartition("/")[2],
        path=path,
        is_file=entry["isFile"],
        is_directory=entry["isDirectory"],
        is_symlink=bool(entry.get("isSymlink")),
        metadata=None if metadata is None else Metadata.from_wire(metadata),
    )


_KINDS = {"created", "modified", "removed"}


def _changes(params: Any) -> Changes:
    try:
        changes = tuple(
            Change(path_from_wire(change["path"]), change["kind"] if change["kind"] in _KINDS else "unknown")
            for change in params["changes"]
        )
        return Changes(changes, bool(params.get("overflow")))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"cannot decode `fs/changed`: {error}") from error
