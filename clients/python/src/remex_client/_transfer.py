"""Files of any size, in constant memory, across disconnects.

A file is read and written in blocks, a few of them in flight. Handles end with their connection; after a reconnect the
file is opened again, and the transfer continues where it was. Start at `RemoteReader` and `RemoteWriter`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from . import models
from ._codec import bytes_of, join, path_from_wire, split
from ._codec import path_to_wire as wire
from ._errors import (
    ChangedError,
    LocalError,
    NotFoundError,
    ProtocolError,
    RefusedError,
    RemexError,
    UsageError,
)
from ._retries import BLOCK, WINDOW, Retries
from ._session import Session

LocalPath = str | os.PathLike[str]

#: The permissions of a temporary file until it gets its final ones.
PRIVATE = 0o600

#: Set-user-id, set-group-id and sticky bits are not copied from another host.
PERMISSIONS = 0o777

_MAX_LINKS = 40


@dataclass(frozen=True)
class Progress:
    """How far a copy is. `total` is None if it is not known."""

    path: str
    bytes: int
    total: int | None
    files: int = 0


class RemoteReader:
    """A file of the remote host, opened for reading: `async with host.files.open(path) as file`.

    It is read as it was when it was opened: if it changes during a disconnect, reading raises `ChangedError`.
    """

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self._path = path
        self._retries = Retries()
        self._handle: str | None = None
        self._metadata: models.FsMetadata | None = None
        #: The requested lengths, and the futures of the blocks.
        self._in_flight: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self._asked = self._got = 0
        self._has_ended = False
        self._rest = b""

    async def __aenter__(self) -> RemoteReader:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def size(self) -> int:
        """The size of the file when it was opened."""
        return self._opened()["size"]

    def tell(self) -> int:
        """Returns the position."""
        return self._got - len(self._rest)

    def seek(self, offset: int) -> None:
        """Sets the position, from the beginning of the file."""
        self._in_flight.clear()
        self._asked = self._got = offset
        self._has_ended, self._rest = False, b""

    async def read(self, n: int = -1) -> bytes:
        """Reads up to `n` bytes, less only at the end; without `n`, everything up to the end.

        Cancelling it loses nothing: the next call begins where this one did.
        """
        parts, wanted = [self._rest], n - len(self._rest)
        try:
            while n < 0 or wanted > 0:
                block = await self._next_block()
                if not block:
                    break
                parts.append(block)
                wanted -= len(block)
        finally:
            self._rest = b"".join(parts)
        data, self._rest = self._rest, b""
        if n >= 0:
            data, self._rest = data[:n], data[n:]
        return data

    def __aiter__(self) -> RemoteReader:
        return self

    async def __anext__(self) -> bytes:
        block, self._rest = self._rest, b""
        block = block or await self._next_block()
        if not block:
            raise StopAsyncIteration
        return block

    def _opened(self) -> models.FsMetadata:
        if self._metadata is None:
            raise UsageError(f"`{self._path}` is not open", "use `async with`")
        return self._metadata

    async def _next_block(self) -> bytes:
        while not self._has_ended:
            try:
                block = await self._receive()
                self._retries.progress()
                self._got += len(block)
                return block
            except RemexError as error:
                # Whatever happens to this call, the next one requests the same block.
                self._in_flight.clear()
                self._asked = self._got
                self._retries.note(error)
            before = self._opened()
            await self._open()
            if not is_same(before, self._opened()):
                raise ChangedError(self._path)
        return b""

    async def _receive(self) -> bytes:
        size = self._opened()["size"]
        # Beyond the original size, one block at a time: usually it is empty.
        while not self._in_flight or (len(self._in_flight) < self._retries.window and self._asked <= size):
            length = self._retries.block
            params = {"handleId": self._handle, "offset": self._asked, "len": length}
            _, future = await self._session.enqueue("fs/readBlock", params)
            self._in_flight.append((length, future))
            self._asked += length
        length, first = self._in_flight[0]
        await asyncio.wait([first])
        self._in_flight.popleft()
        reply = first.result()
        try:
            block, eof = bytes_of(reply["chunk"]), reply["eof"]
            if len(block) > length or (not eof and len(block) < length):
                raise ValueError(f"it has {len(block)} bytes")
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"cannot decode a block of `{self._path}`: {error}") from error
        self._has_ended = bool(eof)
        return block

    async def _open(self) -> None:
        while True:
            handle = self._session.name("f")[-32:]
            try:
                # Sent together; the server handles requests for one path in order.
                opening = {"handleId": handle, "path": self._path}
                replies = [
                    (await self._session.enqueue(method, params))[1]
                    for method, params in (
                        ("fs/getMetadata", {"path": self._path}),
                        ("fs/open", opening),
                        ("fs/getMetadata", {"path": self._path}),
                    )
                ]
                await asyncio.wait(replies)
                before, _, after = (reply.result() for reply in replies)
                if not is_same(before, after):
                    continue
                # Set together: a file that was opened, but not compared, must not be read.
                self._handle, self._metadata = handle, before
                return
            except RemexError as error:
                self._retries.note(error)

    def _close(self) -> None:
        self._in_flight.clear()
        if self._handle is not None and self._session.lost is None:
            self._session.post("fs/close", {"handleId": self._handle})


@dataclass
class _Written:
    """A block that the server has not confirmed; without a reply, it is not sent."""

    offset: int
    chunk: bytes
    reply: asyncio.Future[Any] | None = None


class RemoteWriter:
    """A file of the remote host, opened for writing: `async with host.files.open(path, "wb") as file`.

    The content is collected beside the file, and replaces it in one step when the block ends without an exception. The
    permissions of an existing file stay.
    """

    def __init__(
        self,
        session: Session,
        path: str,
        *,
        must_be_new: bool = False,
        mode: int | None = None,
        modified_ms: int | None = None,
        resolve: bool = True,
    ) -> None:
        self._session = session
        self._asked = self._path = path
        self._must_be_new = must_be_new
        self._mode = mode
        self._modified_ms = modified_ms
        self._resolve = resolve
        self._retries = Retries()
        self._temporary: Temporary | None = None
        self._handle = ""
        self._unanswered: deque[_Written] = deque()
        self._offset = self._done = 0
        self._buffer = bytearray()
        #: Whether a write failed, so that blocks may be missing.
        self._is_torn = False

    async def __aenter__(self) -> RemoteWriter:
        if self._resolve:
            await self._find_destination()
        self._temporary = Temporary(self._session, self._path)
        try:
            await self._open()
        except BaseException:
            self._temporary.discard()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._temporary is not None
        try:
            if error is None:
                await self._finish(self._temporary)
        finally:
            self._close_handle()
            self._temporary.discard()

    def tell(self) -> int:
        """Returns how much was written."""
        return self._offset + len(self._buffer)

    @property
    def acknowledged(self) -> int:
        """How much the server has confirmed."""
        return self._done

    async def write(self, data: bytes | bytearray | memoryview) -> int:
        """Writes; waits while too much is on its way.

        A write that fails or is cancelled leaves the content incomplete: every later one fails, and so does the end of
        the block, which leaves the file as it was.
        """
        if self._temporary is None:
            raise UsageError(f"`{self._asked}` is not open", "use `async with`")
        self._check_whole()
        self._buffer += data
        try:
            while len(self._buffer) >= BLOCK:
                block = bytes(memoryview(self._buffer)[:BLOCK])
                del self._buffer[:BLOCK]
                await self._push(block)
        except BaseException:
            self._is_torn = True
            raise
        return len(data)

    def _check_whole(self) -> None:
        if self._is_torn:
            raise UsageError(
                f"cannot complete `{self._asked}`: a write to it failed or was cancelled", "write the file again"
            )

    async def _push(self, block: bytes) -> None:
        while len(self._unanswered) >= WINDOW:
            await self._settle()
        offset, self._offset = self._offset, self._offset + len(block)
        self._unanswered.extend(self._cut(_Written(offset, block)))
        await self._send()

    def _cut(self, block: _Written) -> list[_Written]:
        """Cuts a block into unsent ones that the network can carry."""
        length = self._retries.block
        starts = range(0, len(block.chunk), length)
        return [_Written(block.offset + at, block.chunk[at : at + length]) for at in starts]

    async def _send(self) -> None:
        for block in list(self._unanswered)[: self._retries.window]:
            if block.reply is None:
                params = {"handleId": self._handle, "offset": block.offset, "chunk": block.chunk}
                _, block.reply = await self._session.enqueue("fs/writeBlock", params)

    async def _settle(self) -> None:
        oldest = self._unanswered[0]
        assert oldest.reply is not None
        await asyncio.wait([oldest.reply])
        error = oldest.reply.exception()
        if error is None:
            self._retries.progress()
            self._done = oldest.offset + len(oldest.chunk)
            self._unanswered.popleft()
        else:
            self._retries.note(error)
            await self._open()
            self._unanswered = deque(piece for block in self._unanswered for piece in self._cut(block))
        await self._send()

    async def _open(self) -> None:
        assert self._temporary is not None
        while True:
            self._handle = self._session.name("f")[-32:]
            params: dict[str, Any] = {"handleId": self._handle, "path": wire(self._temporary.path), "mode": "write"}
            if self._mode is not None:
                params["createMode"] = PRIVATE
            try:
                await self._session.call("fs/open", params)
                return
            except RemexError as error:
                self._retries.note(error)

    async def _finish(self, temporary: Temporary) -> None:
        self._check_whole()
        if self._buffer:
            await self._push(bytes(self._buffer))
            self._buffer.clear()
        while self._unanswered:
            await self._settle()
        if (await get_metadata(self._session, temporary.path))["size"] != self._offset:
            raise ChangedError(self._asked)
        if self._mode is not None:
            await self._session.call("fs/setPermissions", {"path": wire(temporary.path), "mode": self._mode})
        if self._modified_ms is not None:
            await self._session.call("fs/setTimes", {"path": wire(temporary.path), "modifiedAtMs": self._modified_ms})
        self._close_handle()
        await temporary.put_in_place(self._path, self._offset, overwrite=not self._must_be_new)

    def _close_handle(self) -> None:
        if self._handle and self._session.lost is None:
            self._session.post("fs/close", {"handleId": self._handle})
        self._handle = ""

    async def _find_destination(self) -> None:
        """Follows links, so that the file is replaced and not a link to it, and keeps the permissions."""
        for _ in range(_MAX_LINKS):
            try:
                there = await get_metadata(self._session, self._path)
            except NotFoundError:
                target = await self._dangling()
                if target is None:
                    return
                self._path = target
                continue
            if there["isDirectory"]:
                raise UsageError(f"cannot write to `{self._asked}`: it is a directory", "name the file")
            if not there["isFile"]:
                raise RefusedError(-32600, "notAFile", f"`{self._asked}` is a FIFO, socket or device")
            if there["isSymlink"]:
                reply = await self._session.call("fs/canonicalize", {"path": wire(self._path)})
                self._path = path_from_wire(reply["path"])
            if self._mode is None and (mode := there.get("mode")) is not None:
                self._mode = mode & 0o7777
            return
        raise UsageError(f"cannot write to `{self._asked}`: too many levels of symbolic links")

    async def _dangling(self) -> str | None:
        try:
            reply = await self._session.call("fs/readLink", {"path": wire(self._path)})
        except RefusedError:
            return None
        target = bytes_of(reply["targetBase64"]).decode("utf-8", "surrogateescape")
        return target if target.startswith("/") else join(split(path_from_wire(self._path))[0], target)


class Temporary:
    """A temporary file beside a file of the remote host."""

    def __init__(self, session: Session, destination: str) -> None:
        directory, name = split(path_from_wire(destination))
        if name in ("", ".", ".."):
            raise UsageError(f"cannot write to `{destination}`: it names a directory", "name the file")
        self._session = session
        self.path = join(directory, f".{_short(name)}.remex-{secrets.token_hex(8)}")
        self._is_over = False

    async def put_in_place(self, destination: str, size: int, *, overwrite: bool = True) -> None:
        """Renames the file to its destination, exactly once across disconnects."""
        retries = Retries()
        params: dict[str, Any] = {"sourcePath": wire(self.path), "destinationPath": wire(destination)}
        if not overwrite:
            params["overwrite"] = False
        while True:
            try:
                await self._session.call("fs/rename", params, timeout=False)
                break
            except RemexError as error:
                retries.note(error)
            # Nobody else knows the name: if the file is missing, it was renamed before the disconnect.
            try:
                await get_metadata(self._session, self.path)
            except NotFoundError:
                if (await get_metadata(self._session, destination))["size"] != size:
                    raise ChangedError(destination) from None
                break
        self.was_renamed()

    def was_renamed(self) -> None:
        """Records that there is nothing left to remove."""
        self._is_over = True

    def discard(self) -> None:
        """Removes the file unless it was renamed."""
        if not self._is_over and self._session.lost is None:
            self._is_over = True
            params = {"path": wire(self.path), "recursive": False}
            self._session.post("fs/remove", params).repeats = True


async def upload(
    session: Session,
    source: LocalPath,
    path: str,
    mode: int | None,
    progress: Callable[[Progress], None] | None,
    *,
    resolve: bool = True,
) -> int:
    """Copies a local file to the remote host."""
    file = await local(f"open `{source}`", _open_at_once, source)
    with file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise UsageError(f"cannot upload `{source}`: it is not a regular file")
        writer = RemoteWriter(
            session,
            path,
            mode=before.st_mode & PERMISSIONS if mode is None else mode,
            modified_ms=milliseconds_of(before),
            resolve=resolve,
        )
        async with writer:
            while block := await local(f"read `{source}`", file.read, 4 * BLOCK):
                await writer.write(block)
                if progress is not None:
                    progress(Progress(os.fspath(source), writer.acknowledged, before.st_size))
            now = await local(f"look at `{source}`", os.stat, source)
            if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise ChangedError(os.fspath(source))
            size = writer.tell()
    if progress is not None:
        progress(Progress(os.fspath(source), size, before.st_size, 1))
    return size


async def download(
    session: Session, path: str, destination: LocalPath, progress: Callable[[Progress], None] | None
) -> int:
    """Copies a file of the remote host to a local one."""
    # A link is followed, and what it points to is replaced.
    to = await local(f"find `{destination}`", os.path.realpath, destination)
    temporary, size = local_sibling(to), 0
    async with RemoteReader(session, path) as reader:
        metadata = reader._opened()
        try:
            with await local(f"create `{temporary}`", _create_private, temporary) as file:
                async for block in reader:
                    await local(f"write `{temporary}`", file.write, block)
                    size += len(block)
                    if progress is not None:
                        progress(Progress(path, size, metadata["size"]))
                # Files of the kernel, as in `/proc`, have no size, and their time means nothing.
                if metadata["size"] > 0 and not is_same(metadata, await get_metadata(session, path)):
                    raise ChangedError(path)
            await local(f"complete `{to}`", complete_local, temporary, to, metadata)
        except BaseException:
            remove_quietly(temporary)
            raise
    if progress is not None:
        progress(Progress(path, size, metadata["size"], 1))
    return size


async def get_metadata(session: Session, path: str) -> models.FsMetadata:
    """Looks at a path."""
    metadata: models.FsMetadata = await session.call("fs/getMetadata", {"path": wire(path)})
    if not isinstance(metadata, dict) or not {"size", "modifiedAtMs", "isFile", "isDirectory"} <= metadata.keys():
        raise ProtocolError(f"cannot decode the metadata of `{path}`")
    return metadata


def is_same(before: models.FsMetadata, now: models.FsMetadata) -> bool:
    """Returns whether a file is unchanged, judging by size and time."""
    return (before["size"], before["modifiedAtMs"]) == (now["size"], now["modifiedAtMs"])


def milliseconds_of(status: os.stat_result) -> int:
    """Returns the time of a local file as the protocol has it."""
    return status.st_mtime_ns // 1_000_000


def local_sibling(path: str) -> str:
    """Returns the name of a temporary file beside a local file."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{_short(name)}.remex-{secrets.token_hex(8)}")


def complete_local(temporary: str, to: str, metadata: models.FsMetadata) -> None:
    """Gives a local file its final permissions, time and name."""
    if (mode := metadata.get("mode")) is not None:
        os.chmod(temporary, mode & PERMISSIONS)
    if metadata["modifiedAtMs"] > 0:
        nanoseconds = metadata["modifiedAtMs"] * 1_000_000
        os.utime(temporary, ns=(nanoseconds, nanoseconds))
    os.replace(temporary, to)


def remove_quietly(path: str) -> None:
    """Removes a local file if it is there."""
    try:
        os.unlink(path)
    except OSError:
        pass


def local(action: str, work: Callable[..., Any], *args: Any) -> Awaitable[Any]:
    """Runs a function on local files in a thread; raises `LocalError` if it fails."""

    async def run() -> Any:
        try:
            return await asyncio.to_thread(work, *args)
        except OSError as error:
            raise LocalError(f"cannot {action}: {error.strerror or error}", error) from error

    return run()


def _open_at_once(path: LocalPath) -> IO[bytes]:
    # Opening a FIFO would block until there is a writer, in a thread that cannot be interrupted.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _create_private(path: str) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb")


def _short(name: str) -> str:
    """Keeps a name with its suffix below 255 bytes."""
    raw = name.encode("utf-8", "surrogateescape")
    return name if len(raw) <= 200 else raw[:200].decode("utf-8", "ignore")
