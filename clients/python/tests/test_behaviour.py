"""The stories of spec/behaviour, told by this client."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from harness import ROOT, Server, remex, within

import remex_client
from remex_client import Chunk, Exit, Gap, RefusedError, content_hash

TARGETS: list[dict[str, Any]] = json.loads(os.environ.get("REMEX_BEHAVIOUR_TARGETS", "null")) or [
    {"name": "unix"},
    {"name": "ws"},
    {"name": "stdio", "program": [remex(), "serve", "--listen", "stdio"]},
]

STORIES: list[dict[str, Any]] = [
    story for file in sorted((ROOT / "spec" / "behaviour").glob("*.json")) for story in json.loads(file.read_text())
]


def data(form: Any) -> bytes:
    """Returns the bytes that a form of the stories stands for."""
    if isinstance(form, str):
        return form.encode()
    if "base64" in form:
        return base64.b64decode(form["base64"])
    if "numbers" in form:
        return b"".join(b"%d\n" % number for number in range(1, form["numbers"] + 1))
    if "zeros" in form:
        return bytes(int(form["zeros"]))
    if "pattern" in form:
        length = int(form["pattern"])
        return (bytes(range(251)) * (length // 251 + 1))[:length]
    if "times" in form:
        return str(form["text"]).encode() * int(form["times"])
    return b"".join(data(part) for part in form["join"])


def replaced(value: Any, words: dict[str, str]) -> Any:
    """Replaces `${WORD}` in all texts."""
    if isinstance(value, str):
        for word, text in words.items():
            value = value.replace("${" + word + "}", text)
        return value
    if isinstance(value, list):
        return [replaced(item, words) for item in value]
    if isinstance(value, dict):
        # The inner words of a repetition are its own.
        return {key: replaced(item, words) for key, item in value.items()}
    return value


class Teller:
    """Tells one story."""

    def __init__(self, host: remex_client.Host, directory: str, web: str, faults: bool) -> None:
        self.host = host
        self.directory = directory
        self.words = {"DIR": directory, "WEB": web}
        self.faults = faults
        self.processes: dict[str, remex_client.Process] = {}

    async def tell(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            await self.step(step)

    async def step(self, step: dict[str, Any]) -> None:
        (kind, params), *_ = ((key, value) for key, value in step.items() if key not in ("gives", "fails"))
        if kind == "together":
            await asyncio.gather(*(self.tell(steps) for steps in params))
            return
        if kind == "repeat":
            rounds = [self.tell(replaced(params["steps"], {"N": str(n)})) for n in range(1, params["times"] + 1)]
            if params.get("together"):
                await asyncio.gather(*rounds)
            else:
                for told in rounds:
                    await told
            return
        expected = replaced(step.get("gives", {}), self.words)
        do = getattr(self, "do_" + kind)
        work = do(**self.renamed(replaced(params, self.words)))
        if "fails" not in step:
            given = await within(120, f"{kind} {params}", work)
            for name, value in expected.items():
                check(kind, name, (given or {})[name], value)
            return
        try:
            await within(120, f"{kind} {params}", work)
        except remex_client.RemexError as error:
            if "kind" in step["fails"]:
                assert isinstance(error, RefusedError)
                assert error.kind == step["fails"]["kind"]
        else:
            raise AssertionError(f"{kind} {params} did not fail")

    @staticmethod
    def renamed(params: dict[str, Any]) -> dict[str, Any]:
        python = {"as": "as_", "from": "from_", "while": "while_"}
        return {python.get(key, key): value for key, value in params.items()}

    def options(self, command: dict[str, Any]) -> dict[str, Any]:
        tty = command.get("tty")
        options: dict[str, Any] = {
            "command": command["shell"] if "shell" in command else command["argv"],
            "cwd": command.get("cwd", self.directory),
            "env": command.get("env"),
            "tty": (tty["rows"], tty["cols"]) if tty else None,
            "retain_bytes": command.get("retainBytes"),
            "overflow": command.get("overflow") or ("hold" if self.faults else None),
        }
        if command.get("input") == "pipe":
            options["stdin"] = "pipe"
        if "timeoutMs" in command:
            options["timeout"] = command["timeoutMs"] / 1000
        return options

    async def do_start(self, as_: str, **command: Any) -> None:
        self.processes[as_] = await self.host.start(**self.options(command))

    async def do_run(self, stdin: Any = None, **command: Any) -> dict[str, Any]:
        result = await self.host.run(input=None if stdin is None else data(stdin), **self.options(command))
        return {"stdout": result.stdout, "stderr": result.stderr, **ended(result.exit)}

    async def do_write(self, of: str, data: Any) -> None:
        await self.processes[of].stdin.write(globals()["data"](data))
        await self.processes[of].stdin.drain()

    async def do_closeInput(self, of: str) -> None:
        await self.processes[of].stdin.close()

    async def do_output(self, of: str) -> dict[str, Any]:
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": [], "pty": []}
        lost = 0
        async for event in self.processes[of].events():
            if isinstance(event, Chunk):
                parts[event.stream].append(event.data)
            elif isinstance(event, Gap):
                assert event.bytes is not None
                lost += event.bytes
        closed = self.processes[of].closed
        assert closed is not None and closed.produced is not None
        got = {stream: b"".join(pieces) for stream, pieces in parts.items()}
        complete = sum(map(len, got.values())) + lost == sum(closed.produced.values())
        names = {"stdout": got["stdout"], "stderr": got["stderr"], "terminal": got["pty"]}
        return {**names, "lost": lost, "complete": complete}

    async def do_lines(self, of: str) -> dict[str, Any]:
        return {"lines": [[line.stream, line.text] async for line in self.processes[of].lines()]}

    async def do_exit(self, of: str) -> dict[str, Any]:
        return ended(await self.processes[of].wait())

    async def do_waitFor(self, of: str, pattern: str) -> dict[str, Any]:
        try:
            return {"matched": (await self.processes[of].wait_for(pattern)).text}
        except remex_client.NoMatchError as ended:
            return {"code": ended.exit.exit_code}

    async def do_waitForSilence(self, of: str, ms: int) -> dict[str, Any]:
        exit = await self.processes[of].wait_for_silence(ms / 1000)
        return {"silent": True} if exit is None else {"code": exit.exit_code}

    async def do_signal(self, of: str, name: str) -> None:
        await self.processes[of].signal(name)

    async def do_terminate(self, of: str, graceMs: int) -> None:
        await self.processes[of].terminate(graceMs / 1000)

    async def do_kill(self, of: str) -> None:
        await self.processes[of].kill()

    async def do_resize(self, of: str, rows: int, cols: int) -> None:
        await self.processes[of].resize(rows, cols)

    async def do_snapshot(self, of: str, maxBytes: int) -> dict[str, Any]:
        snapshot = await self.processes[of].snapshot(maxBytes)
        stdout = snapshot.stdout
        return {"stdoutStarts": stdout, "stdoutEnds": stdout, "truncated": snapshot.truncated}

    async def do_attach(self, of: str, as_: str) -> None:
        self.processes[as_] = await self.host.process(self.processes[of].id)

    async def do_list(self) -> dict[str, Any]:
        return {"running": sum(info.state == "running" for info in await self.host.processes())}

    async def do_writeFile(self, path: str, data: Any, ifHash: Any = None) -> None:
        content = globals()["data"]
        if ifHash is None:
            await self.host.files.write(path, content(data))
        else:
            await self.host.files.write(path, content(data), if_match=content_hash(content(ifHash)))

    async def do_readFile(self, path: str) -> dict[str, Any]:
        return {"data": await self.host.files.read(path)}

    async def do_metadata(self, path: str) -> dict[str, Any]:
        found = await self.host.files.metadata(path)
        mode = "" if found.permissions is None else f"{found.permissions:o}"
        return {"kind": "symlink" if found.is_symlink else found.kind, "size": found.size, "mode": mode}

    async def do_makeDirectory(self, path: str) -> None:
        await self.host.files.mkdir(path)

    async def do_listDirectory(self, path: str) -> dict[str, Any]:
        return {"names": sorted(entry.name for entry in await self.host.files.listdir(path))}

    async def do_copy(self, from_: str, to: str) -> None:
        await self.host.files.copy(from_, to, recursive=True)

    async def do_rename(self, from_: str, to: str) -> None:
        await self.host.files.rename(from_, to)

    async def do_link(self, path: str, target: str) -> None:
        await self.host.files.symlink(path, target)

    async def do_remove(self, path: str) -> None:
        await self.host.files.remove(path, recursive=True)

    async def do_hash(self, path: str) -> dict[str, Any]:
        return {"of": await self.host.files.hash(path)}

    async def do_upload(self, path: str, data: Any) -> None:
        async with self.host.files.open(path, "wb") as file:
            await file.write(globals()["data"](data))

    async def do_download(self, path: str) -> dict[str, Any]:
        async with self.host.files.open(path) as file:
            return {"data": await file.read()}

    async def do_uploadTree(self, from_: str, to: str) -> dict[str, Any]:
        done = await self.host.files.upload_tree(from_, to)
        return {"files": done.files, "unchanged": done.unchanged}

    async def do_downloadTree(self, from_: str, to: str) -> dict[str, Any]:
        done = await self.host.files.download_tree(from_, to)
        return {"files": done.files, "unchanged": done.unchanged}

    async def do_watch(self, path: str, until: str, while_: list[dict[str, Any]]) -> None:
        watch = await self.host.files.watch(path)
        # After a disconnect the change may be told as an overflow only, so it is made until it is told.
        while True:
            await self.tell(while_)
            try:
                changes = await asyncio.wait_for(watch.__anext__(), 2)
            except asyncio.TimeoutError:
                continue
            if any(change.path.endswith(until) for change in changes.changes):
                break
        await watch.close()

    async def do_http(self, method: str, url: str, body: Any = None, stream: bool = False) -> dict[str, Any]:
        content = None if body is None else data(body)
        if stream:
            async with await self.host.http.stream(method, url, body=content) as streamed:
                whole = await streamed.read()
                return {"status": streamed.status, "body": whole, "method": streamed.header("x-method")}
        response = await self.host.http.request(method, url, body=content)
        return {"status": response.status, "body": response.body, "method": response.header("x-method")}


def ended(exit: Exit) -> dict[str, Any]:
    return {"code": exit.exit_code, "signal": exit.signal, "cause": exit.cause}


def check(kind: str, name: str, given: Any, expected: Any) -> None:
    """Compares an outcome with what a story says."""
    if name == "of":
        assert given == content_hash(data(expected)), f"the hash that {kind} gives"
    elif name == "stdoutStarts":
        assert given.startswith(data(expected))
    elif name == "stdoutEnds":
        assert given.endswith(data(expected))
    elif isinstance(given, bytes):
        # Not a comparison of megabytes by pytest.
        is_same = given == data(expected)
        assert is_same, f"{kind} gives {len(given)} bytes of {name}, {given[:80]!r}…, and not {expected!r}"
    else:
        assert given == expected, f"{kind} gives {name}"


@asynccontextmanager
async def connected(target: dict[str, Any], server: Server) -> AsyncIterator[remex_client.Host]:
    where = target.get("program") or target.get("url") or {"unix": server.unix, "ws": server.websocket}[target["name"]]
    options: dict[str, Any] = {"token": target.get("token"), "ca": target.get("ca")}
    if target.get("faults"):
        options |= {
            "keep_alive_interval": 0.15,
            "keep_alive_timeout": 0.15,
            "connect_timeout": 1.0,
            "handshake_timeout": 3.0,
            "connect_retry": 60.0,
            "detach_ttl": 60.0,
        }
    async with remex_client.connect(where, **options) as host:
        yield host


def cases() -> Iterator[Any]:
    for target in TARGETS:
        for story in STORIES:
            if not target.get("faults") or story.get("faults") is not False:
                yield pytest.param(target, story, id=f"{target['name']}: {story['name']}")


def test_there_are_stories() -> None:
    assert STORIES, f"no stories in {ROOT / 'spec' / 'behaviour'}"


@pytest.mark.parametrize(("target", "story"), list(cases()))
async def test_the_story_holds(target: dict[str, Any], story: dict[str, Any], server: Server, web: str) -> None:
    await told(target, story, server, web)


@pytest.mark.parametrize(("target", "story"), [case for case in cases() if not case.values[0].get("faults")])
def test_the_story_holds_on_uvloop(target: dict[str, Any], story: dict[str, Any], server: Server, web: str) -> None:
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(told(target, story, server, web))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def told(target: dict[str, Any], story: dict[str, Any], server: Server, web: str) -> None:
    directory = tempfile.mkdtemp(prefix="remex-story-")
    try:
        async with connected(target, server) as host:
            teller = Teller(host, str(Path(directory).resolve()), web, bool(target.get("faults")))
            await teller.tell(story["steps"])
    finally:
        shutil.rmtree(directory, ignore_errors=True)
