"""Copies of directory trees. Start at `upload_tree` and `download_tree`.

Files are written beside their destination and renamed, so a reader never finds half of one. Links are copied as links,
and none is followed below the root of the destination.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from . import models
from ._codec import bytes_of, join, path_from_wire
from ._codec import path_to_wire as wire
from ._errors import ChangedError, NotFoundError, ProtocolError, RefusedError, RequestInterrupted, UsageError, decoding
from ._retries import BLOCK, Retries
from ._session import Session
from ._transfer import (
    PERMISSIONS,
    PRIVATE,
    LocalPath,
    Progress,
    Temporary,
    complete_local,
    download,
    get_metadata,
    is_same,
    local,
    local_sibling,
    milliseconds_of,
    remove_quietly,
    upload,
)

SkipUnchanged = Literal["sizeAndTime", "content", "never"]

#: How many files are copied at the same time.
_CONCURRENT = 16

#: How often a small file that changes meanwhile is read again.
_TRIES = 3

#: The owner may write to a directory until everything is in it.
_OWNER = 0o700


@dataclass
class TreeCopied:
    """What a copy of a tree did."""

    files: int = 0
    bytes: int = 0
    unchanged: int = 0
    links: int = 0
    directories: int = 0
    #: Sockets, devices and FIFOs, which are not copied.
    skipped: int = 0


class _Copy:
    """What copies in both directions share."""

    def __init__(
        self,
        session: Session,
        skip: SkipUnchanged,
        ignore: Callable[[str], bool] | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.session = session
        self.skip = skip
        self.ignore = ignore
        self.progress = progress
        self.done = TreeCopied()
        self._slots = asyncio.Semaphore(_CONCURRENT)

    async def all(self, works: Iterable[Awaitable[None]]) -> None:
        """Runs several tasks at once; the first error cancels the others."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            if tasks:
                await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def file(self, path: str, copy: Callable[[], Awaitable[int | None]]) -> None:
        """Counts a file; None means that it is unchanged."""
        async with self._slots:
            size = await copy()
        if size is None:
            self.done.unchanged += 1
        else:
            self.done.files += 1
            self.done.bytes += size
        if self.progress is not None:
            self.progress(Progress(path, self.done.bytes, None, self.done.files))


async def upload_tree(
    session: Session,
    source: LocalPath,
    path: str,
    skip: SkipUnchanged,
    ignore: Callable[[str], bool] | None,
    progress: Callable[[Progress], None] | None,
) -> TreeCopied:
    """Copies a local directory to the remote host."""
    copy = _Upload(session, skip, ignore, progress)
    root = os.fspath(source)
    try:
        if not (await get_metadata(session, path))["isDirectory"]:
            raise UsageError(f"cannot upload into `{path}`: it is not a directory")
        is_new = False
    except NotFoundError:
        await session.call("fs/createDirectory", {"path": wire(path)})
        is_new = True
    # The path of the caller may contain links; below it, none is followed.
    to = path_from_wire((await session.call("fs/canonicalize", {"path": wire(path)}))["path"])
    status = await local(f"look at `{root}`", os.stat, root)
    if is_new:
        await session.call("fs/setPermissions", {"path": wire(to), "mode": status.st_mode & PERMISSIONS | _OWNER})
    await copy.directory(root, to, "", is_new, status)
    return copy.done


class _Upload(_Copy):
    async def directory(self, source: str, to: str, relative: str, is_new: bool, status: os.stat_result) -> None:
        entries: list[os.DirEntry[str]] = await local(f"list `{source}`", _scan, source)
        works: list[Awaitable[None]] = []
        for entry in entries:
            name = f"{relative}/{entry.name}" if relative else entry.name
            if self.ignore is not None and self.ignore(name):
                continue
            works.append(self.entry(entry, join(to, entry.name), name, is_new))
        await self.all(works)
        await self.session.call("fs/setTimes", {"path": wire(to), "modifiedAtMs": milliseconds_of(status)})
        mode = status.st_mode & PERMISSIONS
        if is_new and mode & _OWNER != _OWNER:
            await self.session.call("fs/setPermissions", {"path": wire(to), "mode": mode, "followSymlinks": False})

    async def entry(self, entry: os.DirEntry[str], to: str, relative: str, in_new: bool) -> None:
        status = await local(f"look at `{entry.path}`", lambda: entry.stat(follow_symlinks=False))
        if stat.S_ISLNK(status.st_mode):
            await self.link(entry.path, to, in_new)
        elif stat.S_ISDIR(status.st_mode):
            self.done.directories += 1
            await self.directory(
                entry.path, to, relative, await self.make_directory(to, status.st_mode, in_new), status
            )
        elif stat.S_ISREG(status.st_mode):
            await self.file(entry.path, lambda: self.copy(entry.path, to, status, in_new))
        else:
            self.done.skipped += 1

    async def make_directory(self, to: str, mode: int, in_new: bool) -> bool:
        """Returns whether the directory is new."""
        there = None if in_new else await self.find(to)
        if there is not None and there["isSymlink"]:
            raise UsageError(f"cannot upload into `{to}`: it is a symbolic link, which could point outside of the tree")
        if there is not None and not there["isDirectory"]:
            raise UsageError(f"cannot upload into `{to}`: it is not a directory")
        if there is None:
            await self.session.call("fs/createDirectory", {"path": wire(to), "followSymlinks": False})
        wanted = mode & PERMISSIONS | _OWNER
        if there is None or there.get("mode") != wanted:
            await self.session.call("fs/setPermissions", {"path": wire(to), "mode": wanted, "followSymlinks": False})
        return there is None

    async def copy(self, source: str, to: str, status: os.stat_result, in_new: bool) -> int | None:
        there = None if in_new else await self.find(to)
        if there is not None and await self.is_unchanged(source, to, status, there):
            return None
        if there is not None and not there["isSymlink"] and not there["isFile"]:
            raise RefusedError(-32600, "notAFile", f"cannot replace `{to}`: it is not a file")
        if status.st_size > BLOCK:
            return await upload(self.session, source, wire(to), None, None, resolve=False)
        data, now = await local(f"read `{source}`", _read_small, source)
        await self.send_small(data, to, now)
        return len(data)

    async def send_small(self, data: bytes, to: str, status: os.stat_result) -> None:
        temporary, disconnects = Temporary(self.session, wire(to)), self.session.disconnects
        path = wire(temporary.path)
        times = {"path": path, "modifiedAtMs": milliseconds_of(status)}
        try:
            # The server handles requests for one path in order, so one round trip is enough.
            steps: list[tuple[str, dict[str, Any]]] = [
                ("fs/writeFile", {"path": path, "dataBase64": data, "createMode": PRIVATE}),
                ("fs/setPermissions", {"path": path, "mode": status.st_mode & PERMISSIONS}),
                ("fs/setTimes", times),
            ]
            replies = [(await self.session.enqueue(method, params))[1] for method, params in steps]
            await asyncio.wait(replies)
            for reply in replies:
                reply.result()
            # A write whose answer was lost may have been repeated after the time was set.
            if self.session.disconnects != disconnects:
                await self.session.call("fs/setTimes", times)
            await temporary.put_in_place(to, len(data))
        finally:
            temporary.discard()

    async def is_unchanged(self, source: str, to: str, status: os.stat_result, there: models.FsMetadata) -> bool:
        if self.skip == "never" or there["isSymlink"] or not there["isFile"] or there["size"] != status.st_size:
            return False
        modified = milliseconds_of(status)
        if self.skip == "sizeAndTime":
            if there["modifiedAtMs"] != modified:
                return False
        else:
            reply = await self.session.call("fs/hash", {"path": wire(to)}, timeout=False)
            if reply["hash"] != await local(f"read `{source}`", _hash, source):
                return False
            if there["modifiedAtMs"] != modified:
                await self.session.call("fs/setTimes", {"path": wire(to), "modifiedAtMs": modified})
        mode = status.st_mode & PERMISSIONS
        if there.get("mode") != mode:
            await self.session.call("fs/setPermissions", {"path": wire(to), "mode": mode, "followSymlinks": False})
        return True

    async def link(self, source: str, to: str, in_new: bool) -> None:
        target: bytes = os.fsencode(await local(f"read `{source}`", os.readlink, source))
        if not in_new and await self.link_target(to) == target:
            self.done.unchanged += 1
            return
        temporary = Temporary(self.session, wire(to))
        retries = Retries()
        try:
            while True:
                try:
                    await self.place_link(temporary, to, target)
                    break
                except RequestInterrupted as error:
                    # Nobody else knows the temporary name, so the destination tells whether the rename took effect.
                    retries.note(error)
                    if await self.link_target(to) == target and await self.link_target(temporary.path) is None:
                        break
            temporary.was_renamed()
        finally:
            temporary.discard()
        self.done.links += 1

    async def place_link(self, temporary: Temporary, to: str, target: bytes) -> None:
        if await self.link_target(temporary.path) is None:
            params = {"path": wire(temporary.path), "targetBase64": target}
            await self.session.call("fs/symlink", params)
        await self.session.call("fs/rename", {"sourcePath": wire(temporary.path), "destinationPath": wire(to)})

    async def link_target(self, path: str) -> bytes | None:
        try:
            reply = await self.session.call("fs/readLink", {"path": wire(path)})
        except RefusedError:
            return None
        with decoding("fs/readLink"):
            return bytes_of(reply["targetBase64"])

    async def find(self, path: str) -> models.FsMetadata | None:
        try:
            return await get_metadata(self.session, path)
        except NotFoundError:
            return None


async def download_tree(
    session: Session,
    path: str,
    destination: LocalPath,
    skip: SkipUnchanged,
    ignore: Callable[[str], bool] | None,
    progress: Callable[[Progress], None] | None,
) -> TreeCopied:
    """Copies a directory of the remote host to a local one."""
    copy = _Download(session, skip, ignore, progress)
    to = os.fspath(destination)
    source = path_from_wire(path)
    metadata = await get_metadata(session, source)
    if not metadata["isDirectory"]:
        raise UsageError(f"cannot download `{source}`: it is not a directory")
    await local(f"create `{to}`", lambda: os.makedirs(to, exist_ok=True))
    await copy.directory(source, to, "", metadata)
    return copy.done


class _Download(_Copy):
    async def directory(self, source: str, to: str, relative: str, metadata: models.FsMetadata) -> None:
        works: list[Awaitable[None]] = []
        cursor: str | None = None
        while True:
            params: dict[str, Any] = {"path": wire(source), "limit": 10_000, "details": True}
            if cursor is not None:
                params["cursor"] = cursor
            page = await self.session.call("fs/readDirectory", params)
            for entry in page["entries"]:
                name = path_from_wire(entry["path"]).rpartition("/")[2]
                # The name becomes part of a local path, and the server is not trusted with that.
                if name in ("", ".", "..") or "\0" in name or os.sep in name:
                    raise ProtocolError(f"the directory `{source}` has an entry with an impossible name")
                inner = f"{relative}/{name}" if relative else name
                if self.ignore is not None and self.ignore(inner):
                    continue
                works.append(self.entry(join(source, name), os.path.join(to, name), inner, entry))
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        await self.all(works)
        await local(f"complete `{to}`", _set_attributes, to, metadata)

    async def entry(self, source: str, to: str, relative: str, entry: models.FsDirectoryEntry) -> None:
        metadata = entry.get("metadata") or await get_metadata(self.session, source)
        if entry.get("isSymlink"):
            await self.link(source, to)
        elif metadata["isDirectory"]:
            self.done.directories += 1
            await local(f"create `{to}`", _make_directory, to, metadata)
            await self.directory(source, to, relative, metadata)
        elif metadata["isFile"]:
            await self.file(source, lambda: self.copy(source, to, metadata))
        else:
            self.done.skipped += 1

    async def copy(self, source: str, to: str, metadata: models.FsMetadata) -> int | None:
        if await self.is_unchanged(source, to, metadata):
            return None
        if metadata["size"] > BLOCK:
            return await download(self.session, wire(source), to, None)
        for _ in range(_TRIES):
            # The server handles requests for one path in order.
            read = await self.session.enqueue("fs/readFile", {"path": wire(source)})
            look = await self.session.enqueue("fs/getMetadata", {"path": wire(source)})
            await asyncio.wait([read[1], look[1]])
            found, now = read[1].result(), look[1].result()
            with decoding("fs/readFile"):
                data = bytes_of(found["dataBase64"])
            # Files of the kernel, as in `/proc`, have content although their size is 0.
            if metadata["size"] == 0 or (is_same(metadata, now) and len(data) == now["size"]):
                await local(f"write `{to}`", _write_small, to, data, metadata)
                return len(data)
            metadata = now
        raise ChangedError(source)

    async def is_unchanged(self, source: str, to: str, metadata: models.FsMetadata) -> bool:
        if self.skip == "never":
            return False
        there: os.stat_result | None = await local(f"look at `{to}`", _find, to)
        if there is None or not stat.S_ISREG(there.st_mode) or there.st_size != metadata["size"]:
            return False
        if self.skip == "sizeAndTime":
            if milliseconds_of(there) != metadata["modifiedAtMs"]:
                return False
        else:
            reply = await self.session.call("fs/hash", {"path": wire(source)}, timeout=False)
            if reply["hash"] != await local(f"read `{to}`", _hash, to):
                return False
        await local(f"complete `{to}`", _set_attributes, to, metadata)
        return True

    async def link(self, source: str, to: str) -> None:
        reply = await self.session.call("fs/readLink", {"path": wire(source)})
        with decoding("fs/readLink"):
            target = bytes_of(reply["targetBase64"])
        if await local(f"link `{to}`", _write_link, to, target):
            self.done.links += 1
        else:
            self.done.unchanged += 1


def _scan(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return list(entries)


def _read_small(path: str) -> tuple[bytes, os.stat_result]:
    """Reads a file that did not change meanwhile."""
    for _ in range(_TRIES):
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            data = file.read()
            after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            return data, before
    raise ChangedError(path)


def _write_small(path: str, data: bytes, metadata: models.FsMetadata) -> None:
    temporary = local_sibling(path)
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, PRIVATE)) as file:
            file.write(data)
        complete_local(temporary, path, metadata)
    except BaseException:
        remove_quietly(temporary)
        raise


def _write_link(path: str, target: bytes) -> bool:
    """Returns whether the link was new or different."""
    try:
        if os.fsencode(os.readlink(path)) == target:
            return False
    except OSError:
        pass
    temporary = local_sibling(path)
    os.symlink(os.fsdecode(target), temporary)
    try:
        os.replace(temporary, path)
    except BaseException:
        remove_quietly(temporary)
        raise
    return True


def _make_directory(path: str, metadata: models.FsMetadata) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        # A link could point outside of the tree.
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise
    if (mode := metadata.get("mode")) is not None:
        os.chmod(path, mode & PERMISSIONS | _OWNER)


def _set_attributes(path: str, metadata: models.FsMetadata) -> None:
    nanoseconds = metadata["modifiedAtMs"] * 1_000_000
    os.utime(path, ns=(nanoseconds, nanoseconds))
    if (mode := metadata.get("mode")) is not None:
        os.chmod(path, mode & PERMISSIONS)


def _find(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _hash(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return "sha256:" + digest.hexdigest()
