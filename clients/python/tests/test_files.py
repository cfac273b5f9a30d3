"""Files, trees, watches and HTTP, over every transport."""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from harness import ScriptedServer, Server, proxied, within

import remex_client
from remex_client import ChangedError, Host, RefusedError, UsageError, content_hash
from remex_client._codec import path_from_wire
from remex_client._retries import BLOCK


async def test_a_missing_file_is_a_built_in_error_too(host: Host, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        await host.files.read(tmp_path / "missing")
    assert isinstance(missing.value, RefusedError)
    assert missing.value.kind == "notFound"
    assert not await host.files.exists(tmp_path / "missing")


async def test_relative_paths_and_the_home_directory_are_those_of_the_host(host: Host, tmp_path: Path) -> None:
    info = host.welcome["environmentInfo"]
    assert info is not None
    relative = os.path.relpath(tmp_path, path_from_wire(info["cwd"]))
    await host.files.write(f"{relative}/file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert await host.files.read(PurePosixPath(relative, "file")) == b"content"
    name = os.path.join(os.fsencode(relative), b"caf\xe9")
    async with host.files.open(name, "wb") as file:
        await file.write(b"more")
    assert await host.files.read(name) == b"more"
    await host.files.upload_tree(tmp_path, f"{relative}/copy", ignore=lambda path: path == "copy")
    assert (tmp_path / "copy" / "file").read_bytes() == b"content"
    assert await host.files.realpath("~") == os.path.realpath(path_from_wire(info["userHomeDir"]))
    assert await host.files.realpath("~/.") == await host.files.realpath("~")
    assert await host.files.realpath(".") == os.path.realpath(path_from_wire(info["cwd"]))
    with pytest.raises(UsageError):
        await host.files.read("")
    with pytest.raises(FileNotFoundError) as missing:
        await host.files.read("~nobody/file")
    assert missing.value.filename == path_from_wire(info["cwd"]) + "/~nobody/file"


async def test_a_write_returns_the_hash_that_the_next_one_needs(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "file"
    first = await host.files.write(path, b"one")
    assert first == content_hash(b"one") == await host.files.hash(path)
    second = await host.files.write_text(path, "two", if_match=first, atomic=True)
    assert second == await host.files.hash(path)
    with pytest.raises(RefusedError, match="does not match `ifMatch`") as refusal:
        await host.files.write(path, b"three", if_match=first)
    assert refusal.value.kind == "contentChanged"
    nothing: Any = None
    with pytest.raises(UsageError, match="it would replace whatever is there"):
        await host.files.write(path, b"three", if_match=nothing)
    number: Any = 5
    with pytest.raises(TypeError):
        await host.files.write(path, number)
    assert path.read_bytes() == b"two"


async def test_text_is_read_and_written(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "text"
    async with host.files.open(path, "w") as writer:
        assert await writer.write("grüße\n") == 6
        await writer.write("two\nlast")
    assert path.read_bytes() == "grüße\ntwo\nlast".encode()
    with pytest.raises(FileExistsError):
        async with host.files.open(path, "x") as writer:
            await writer.write("new")
    async with host.files.open(path, "r") as reader:
        assert await reader.read(3) == "grü"
        assert await reader.readline() == "ße\n"
        assert [line async for line in reader] == ["two\n", "last"]
        assert (await reader.read(), await reader.read(5), await reader.readline()) == ("", "", "")
    path.write_bytes("ä\r\nb\r".encode("utf-16"))
    async with host.files.open(path, "rt", encoding="utf-16") as reader:
        assert await reader.read() == "ä\nb\n"
    long = "é" * 1_000_000 + "\n"
    async with host.files.open(path, "wt", encoding="utf-8") as writer:
        await writer.write(long + "end")
    async with host.files.open(path, "r") as reader:
        assert await reader.readline() == long
        assert await reader.read(2) == "en"
    for mode in ("a", "r+", "br", ""):
        with pytest.raises(UsageError):
            host.files.open(path, mode)


async def test_names_that_are_not_utf8_work_everywhere(host: Host, tmp_path: Path) -> None:
    name = os.path.join(os.fsencode(tmp_path), b"caf\xe9 %41")
    await host.files.write(name, b"content")
    assert await host.files.read(os.fsdecode(name)) == b"content"
    (entry,) = await host.files.listdir(tmp_path)
    assert (os.fsencode(entry.name), entry.is_file) == (b"caf\xe9 %41", True)
    assert await host.files.read(entry.path) == b"content"
    async with host.files.open(entry.path, "wb") as file:
        await file.write(b"more")
    assert Path(os.fsdecode(name)).read_bytes() == b"more"


async def test_a_write_may_be_conditional(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "file"
    await host.files.write(path, b"one", if_match="absent", permissions=0o600)
    with pytest.raises(RefusedError) as refusal:
        await host.files.write(path, b"two", if_match="absent")
    assert refusal.value.kind == "contentChanged"
    await host.files.write(path, b"two", if_match=content_hash(b"one"), atomic=True)
    assert await host.files.read_text(path) == "two"
    metadata = await host.files.metadata(path)
    assert (metadata.kind, metadata.size, (metadata.permissions or 0)) == ("file", 3, 0o600)


async def test_names_are_managed(host: Host, tmp_path: Path) -> None:
    files = host.files
    await files.mkdir(tmp_path / "a" / "b")
    await files.write_text(tmp_path / "a" / "file", "text")
    await files.symlink(tmp_path / "a" / "link", "file")
    assert await files.read_link(tmp_path / "a" / "link") == "file"
    assert await files.realpath(tmp_path / "a" / "link") == str((tmp_path / "a" / "file").resolve())
    await files.copy(tmp_path / "a", tmp_path / "c", recursive=True)
    await files.rename(tmp_path / "c" / "file", tmp_path / "c" / "other")
    with pytest.raises(FileExistsError):
        await files.rename(tmp_path / "c" / "other", tmp_path / "a" / "file", overwrite=False)
    assert [entry.name for entry in await files.listdir(tmp_path / "c")] == ["b", "link", "other"]
    await files.chmod(tmp_path / "a" / "file", 0o640)
    await files.set_times(tmp_path / "a" / "file", modified=1_600_000_000.5)
    assert (tmp_path / "a" / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a" / "file").stat().st_mtime == 1_600_000_000.5
    walk = await files.walk(tmp_path)
    assert sorted(path.removeprefix(f"{tmp_path}/") for path, _ in walk.entries) == [
        "a",
        "a/b",
        "a/file",
        "c",
        "c/b",
        "c/other",
    ]
    with pytest.raises(RefusedError):
        await files.remove(tmp_path / "a")
    await files.remove(tmp_path / "a", recursive=True)
    await files.remove(tmp_path / "a", missing_ok=True)


async def test_files_of_any_size_are_streams(host: Host, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    path = tmp_path / "large"
    async with host.files.open(path, "wb") as writer:
        for at in range(0, len(data), 100_000):
            await writer.write(data[at : at + 100_000])
        assert not path.exists(), "it appears in one step"
    async with host.files.open(path) as reader:
        assert reader.size == len(data)
        assert await reader.read(10) == data[:10]
        assert b"".join([block async for block in reader]) == data[10:]
        reader.seek(2_999_990)
        assert (await reader.read(), reader.tell()) == (data[2_999_990:], len(data))
        assert await reader.read() == b""


async def test_a_failed_block_leaves_the_old_file(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(RuntimeError):
        async with host.files.open(path, "wb") as file:
            await file.write(b"new" * 100_000)
            raise RuntimeError
    await host.call("environment/status")
    assert path.read_text() == "old"
    async with host.files.open(path, "wb") as file:
        await file.write(b"new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    with pytest.raises(FileExistsError):
        async with host.files.open(path, "xb") as file:
            await file.write(b"newer")
    while [entry.name for entry in await host.files.listdir(tmp_path)] != ["file"]:
        await asyncio.sleep(0.01)


async def test_a_link_is_written_through(host: Host, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    async with host.files.open(tmp_path / "link", "wb") as file:
        await file.write(b"first")
    async with host.files.open(tmp_path / "link", "wb") as file:
        await file.write(b"second")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "second"


async def test_uploads_and_downloads_keep_permissions_and_times(host: Host, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(600_000))
    source.chmod(0o750)
    os.utime(source, (1_600_000_000, 1_600_000_000))
    seen: list[int] = []
    await host.files.upload(source, tmp_path / "up", progress=lambda progress: seen.append(progress.bytes))
    assert seen[-1] == 600_000
    assert await host.files.download(tmp_path / "up", tmp_path / "down") == 600_000
    for copy in ("up", "down"):
        status = (tmp_path / copy).stat()
        assert (tmp_path / copy).read_bytes() == source.read_bytes()
        assert (status.st_mode & 0o777, status.st_mtime) == (0o750, 1_600_000_000)
    with pytest.raises(remex_client.LocalError):
        await host.files.upload(tmp_path / "missing", tmp_path / "x")


async def test_trees_skip_what_is_unchanged_and_what_is_ignored(host: Host, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "skip").mkdir(parents=True)
    (tree / "skip" / "x").write_text("x")
    (tree / "read-only").mkdir()
    (tree / "read-only" / "a").write_text("a")
    (tree / "read-only").chmod(0o500)
    (tree / "large").write_bytes(os.urandom(400_000))
    (tree / "dangling").symlink_to("nowhere")
    copied = await host.files.upload_tree(tree, tmp_path / "up", ignore=lambda path: path == "skip")
    assert (copied.files, copied.links, copied.directories) == (2, 1, 1)
    assert (tmp_path / "up" / "read-only").stat().st_mode & 0o777 == 0o500
    assert not (tmp_path / "up" / "skip").exists()
    (tree / "large").write_bytes(os.urandom(400_000))
    again = await host.files.upload_tree(tree, tmp_path / "up", ignore=lambda path: path == "skip")
    assert (again.files, again.unchanged) == (1, 2)
    os.utime(tree / "large", (1, 1))
    by_content = await host.files.upload_tree(tree, tmp_path / "up", skip_unchanged="content")
    assert (by_content.files, by_content.unchanged) == (1, 3)
    assert (tmp_path / "up" / "large").stat().st_mtime == 1
    down = await host.files.download_tree(tmp_path / "up", tmp_path / "down")
    assert (down.files, down.links, down.directories) == (3, 1, 2)
    assert (tmp_path / "down" / "large").read_bytes() == (tree / "large").read_bytes()
    assert os.readlink(tmp_path / "down" / "dangling") == "nowhere"
    same = await host.files.download_tree(tmp_path / "up", tmp_path / "down", skip_unchanged="content")
    assert (same.files, same.unchanged) == (0, 4)
    for directory in (tree, tmp_path / "up", tmp_path / "down"):
        (directory / "read-only").chmod(0o700)


async def test_a_tree_is_not_copied_through_a_link(host: Host, tmp_path: Path) -> None:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "file").write_text("x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "below").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="symbolic link"):
        await host.files.upload_tree(tmp_path / "tree", tmp_path / "up")
    with pytest.raises(remex_client.LocalError):
        await host.files.download_tree(tmp_path / "tree", tmp_path / "up")
    assert not list((tmp_path / "outside").iterdir())


async def test_a_file_that_changes_during_a_copy_is_reported(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3_000_000))
    with pytest.raises(ChangedError):
        await host.files.upload(path, tmp_path / "up", progress=lambda progress: os.utime(path, (progress.bytes, 1)))
    assert not (tmp_path / "up").exists()


async def test_changes_are_reported(host: Host, tmp_path: Path) -> None:
    watch = await host.files.watch(tmp_path)
    (tmp_path / "new").write_text("x")
    changes = await within(10, "the change", watch.__anext__())
    assert [(change.path, change.kind) for change in changes.changes] == [(str(tmp_path / "new"), "created")]
    assert not changes.overflow
    await watch.close()


async def test_a_watcher_that_falls_behind_gets_an_overflow(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remex_client._route._ROUTE_ITEMS", 1)
    watch = await host.files.watch(tmp_path)
    for number in range(3):
        seen = host._session._inbox.received
        (tmp_path / str(number)).write_text("x")
        while host._session._inbox.received == seen:
            await asyncio.sleep(0.01)
    looks = [await within(10, "a look", watch.__anext__()) for _ in range(2)]
    assert [look.overflow for look in looks] == [False, True]
    (tmp_path / "later").write_text("x")
    changes = await within(10, "the change", watch.__anext__())
    assert [change.path for change in changes.changes] == [str(tmp_path / "later")]


class _Web(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        self.send_response(200)
        self.send_header("x-digest", hashlib.sha256(body).hexdigest())
        self.end_headers()
        self.wfile.write(b'{"a": 1}')

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        while True:
            try:
                self.wfile.write(bytes(65536))
            except OSError:
                return

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Web)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


async def test_requests_are_made_from_the_host(host: Host, web: str) -> None:
    response = await host.http.post(web, b"body", headers={"content-type": "text/plain"}, timeout=10)
    assert (response.status, response.json()) == (200, {"a": 1})
    assert response.header("X-Digest") == hashlib.sha256(b"body").hexdigest()


async def test_a_streamed_body_can_be_closed_early(host: Host, web: str) -> None:
    size = 0
    async with await host.http.stream("GET", web) as response:
        async for piece in response:
            size += len(piece)
            if size > 3_000_000:
                break
    assert (await within(10, "another request", host.http.post(web, b""))).status == 200


def metadata_of(size: int) -> dict[str, Any]:
    return {"size": size, "modifiedAtMs": 0, "isFile": True, "isDirectory": False, "isSymlink": False}


async def test_a_cancelled_write_leaves_the_file_as_it_was() -> None:
    def answer(method: str, params: dict[str, Any]) -> Any:
        if method == "fs/writeBlock":
            return None
        return metadata_of(0) if method == "fs/getMetadata" else {}

    async def incomplete() -> None:
        async with host.files.open("/file", "wb") as file:
            write = asyncio.create_task(file.write(bytes(6 * BLOCK)))
            await server.received_message(
                "a full window",
                lambda sent: sent["method"] == "fs/writeBlock" and sent["params"]["offset"] == 3 * BLOCK,
            )
            write.cancel()
            await asyncio.wait([write], timeout=10)
            assert write.cancelled()
            with pytest.raises(UsageError):
                await file.write(b"more")

    async with ScriptedServer(answer) as server, remex_client.connect(server.url) as host:
        with pytest.raises(UsageError, match="failed or was cancelled"):
            await within(20, "the end of the block", incomplete())
        await server.received_message("the removal", lambda sent: sent["method"] == "fs/remove")
        assert "fs/rename" not in [message["method"] for message in server.received]


@pytest.mark.parametrize("n", [-1, 3 * BLOCK])
async def test_a_cancelled_read_loses_nothing(n: int) -> None:
    content = os.urandom(8 * BLOCK)
    is_slow = True

    def block(params: dict[str, Any]) -> dict[str, Any]:
        piece = content[params["offset"] : params["offset"] + params["len"]]
        return {"chunk": base64.b64encode(piece).decode(), "eof": params["offset"] + params["len"] > len(content)}

    def answer(method: str, params: dict[str, Any]) -> Any:
        if method == "fs/readBlock":
            return None if is_slow and params["offset"] > 0 else block(params)
        return metadata_of(len(content)) if method == "fs/getMetadata" else {}

    async with (
        ScriptedServer(answer) as server,
        remex_client.connect(server.url) as host,
        host.files.open("/file") as file,
    ):
        read = asyncio.create_task(file.read(n))
        # It asks for the fifth block when it has taken the first.
        await server.received_message(
            "another request",
            lambda sent: sent["method"] == "fs/readBlock" and sent["params"]["offset"] == 4 * BLOCK,
        )
        read.cancel()
        await asyncio.wait([read], timeout=10)
        assert read.cancelled()
        assert file.tell() == 0
        is_slow = False
        for message in server.received:
            if message["method"] == "fs/readBlock" and message["params"]["offset"] > 0:
                server.send(json.dumps({"id": message["id"], "result": block(message["params"])}))
        assert await within(10, "the content", file.read(n)) == content[: n if n > 0 else None]


async def test_a_read_that_is_cancelled_during_a_reopen_loses_nothing() -> None:
    content = os.urandom(BLOCK)
    opened = 0

    def answer(method: str, params: dict[str, Any]) -> Any:
        nonlocal opened
        if method == "fs/readBlock":
            if opened == 1:
                return None
            piece = content[params["offset"] : params["offset"] + params["len"]]
            return {"chunk": base64.b64encode(piece).decode(), "eof": len(piece) < params["len"]}
        if method == "fs/open":
            opened += 1
            return None if opened == 2 else {}
        return metadata_of(len(content)) if method == "fs/getMetadata" else {}

    async with (
        ScriptedServer(answer) as server,
        remex_client.connect(server.url) as host,
        host.files.open("/file") as file,
    ):
        first = next(message for message in server.received if message["method"] == "fs/open")
        read = asyncio.create_task(file.read())
        await server.received_message("a request", lambda sent: sent["method"] == "fs/readBlock")
        server.disconnect()
        await server.received_message(
            "the second opening", lambda sent: sent["method"] == "fs/open" and sent["id"] != first["id"]
        )
        read.cancel()
        await asyncio.wait([read], timeout=10)
        assert read.cancelled()
        assert await within(10, "the content", file.read()) == content


async def test_a_file_is_read_over_a_connection_that_keeps_breaking(server: Server, tmp_path: Path) -> None:
    content = os.urandom(8_000_000)
    (tmp_path / "large").write_bytes(content)
    async with proxied(server.unix, lambda: 3_000_000) as (url, _):
        host = await remex_client.connect(url)
        assert await within(60, "the content", host.files.read(tmp_path / "large")) == content
        assert host.disconnects > 2
        await host.end()


async def test_a_file_is_copied_over_connections_that_are_too_short_for_a_block(server: Server, tmp_path: Path) -> None:
    content = os.urandom(100_000)
    (tmp_path / "large").write_bytes(content)
    async with proxied(server.unix, lambda: 60_000) as (url, _):

        async def up() -> int:
            host = await remex_client.connect(url, detach_ttl=60.0)
            await host.files.upload(tmp_path / "large", tmp_path / "up")
            await host.end()
            return host.disconnects

        async def down() -> int:
            host = await remex_client.connect(url, detach_ttl=60.0)
            await host.files.download(tmp_path / "large", tmp_path / "down")
            await host.end()
            return host.disconnects

        assert min(await within(60, "both copies", asyncio.gather(up(), down()))) > 3
    assert (tmp_path / "up").read_bytes() == (tmp_path / "down").read_bytes() == content


async def test_errors_have_the_errno_and_the_filename(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    files, path = host.files, str(tmp_path)
    cases: list[tuple[Callable[[], Awaitable[Any]], type[OSError], int, str]] = [
        (lambda: files.read(f"{path}/missing"), FileNotFoundError, errno.ENOENT, f"{path}/missing"),
        (lambda: files.read(path), IsADirectoryError, errno.EISDIR, path),
        (lambda: files.read(f"{path}/file/x"), NotADirectoryError, errno.ENOTDIR, f"{path}/file/x"),
        (lambda: files.mkdir(f"{path}/full", parents=False), FileExistsError, errno.EEXIST, f"{path}/full"),
        (lambda: files.remove(f"{path}/full"), OSError, errno.ENOTEMPTY, f"{path}/full"),
        (lambda: host.start(["/nowhere/at/all"]), FileNotFoundError, errno.ENOENT, "/nowhere/at/all"),
        (lambda: host.start([f"{path}/file"]), PermissionError, errno.EACCES, f"{path}/file"),
        (lambda: host.start(["true"], cwd=f"{path}/missing"), FileNotFoundError, errno.ENOENT, f"{path}/missing"),
        (lambda: host.start(["true"], cwd=f"{path}/file"), NotADirectoryError, errno.ENOTDIR, f"{path}/file"),
    ]
    for call, kind, number, name in cases:
        with pytest.raises(kind) as failure:
            await call()
        assert isinstance(failure.value, RefusedError)
        assert (failure.value.errno, failure.value.filename) == (number, name)
        assert not failure.value.is_retryable
        assert not failure.value.may_have_happened


async def test_a_local_fifo_is_refused_without_waiting(host: Host, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    try:
        with pytest.raises(UsageError, match="not a regular file"):
            await within(10, "the refusal", host.files.upload(fifo, tmp_path / "copy"))
    finally:
        # A thread that waits for a writer would keep this program from ending.
        os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
    assert not (tmp_path / "copy").exists()
