"""Searching the files of the host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness import ScriptedServer, Server, within

import remex_client
from remex_client import FoundFile, FoundLine, Host, RefusedError, UsageError, sync


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with source, an ignored file, a binary file and long lines."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.rs").write_text("use x;\nfn one() {\n}\nfn two() {\n}\n")
    (tmp_path / "src" / "b.py").write_text("def fn (): pass\n")
    (tmp_path / "target.rs").write_text("fn built() {\n")
    (tmp_path / ".gitignore").write_text("target.rs\n")
    (tmp_path / "data").write_bytes(b"fn \0 data")
    return tmp_path


async def test_lines_are_found_with_their_context(host: Host, tree: Path) -> None:
    found = await host.files.search(tree, r"^fn \w+", context_after=1)
    a = FoundFile(
        str(tree / "src" / "a.rs"),
        2,
        (
            FoundLine(2, "fn one() {"),
            FoundLine(3, "}", is_match=False),
            FoundLine(4, "fn two() {"),
            FoundLine(5, "}", is_match=False),
        ),
    )
    assert found.files == (a,)
    assert (found.ignored, found.binary, found.binary_files) == (1, 1, (str(tree / "data"),))
    assert (found.searched, found.returned, found.truncated) == (4, 2, None)
    assert found.is_complete


async def test_options_choose_what_is_searched_and_returned(host: Host, tree: Path) -> None:
    files = host.files
    assert [file.path for file in (await files.search(tree, "FN (", literal=True, ignore_case=True)).files] == [
        str(tree / "src" / "b.py")
    ]
    everything = await files.search(tree, "fn", with_ignored=True, report="counts", globs=["*.rs", "!src"])
    assert everything.files == (FoundFile(str(tree / "target.rs"), 1),)
    counted = await files.search(tree, "fn", report="counts", globs=["src/*"])
    assert [(Path(file.path).name, file.count) for file in counted.files] == [("a.rs", 2), ("b.py", 1)]
    listed = await files.search(tree, report="files", max_depth=0)
    assert [Path(file.path).name for file in listed.files] == [".gitignore", "data"]
    assert listed.returned == 2
    single = await files.search(tree / "src" / "a.rs", "two")
    assert [line.number for file in single.files for line in file.lines] == [4]


async def test_a_limit_ends_a_search_that_can_be_continued(host: Host, tree: Path) -> None:
    numbers, skip = [], 0
    while True:
        found = await host.files.search(tree, r"\w", globs=["*.rs", "*.py"], skip=skip, max_items=2, context_before=1)
        numbers += [line.number for file in found.files for line in file.lines if line.is_match]
        skip += found.returned
        if found.truncated is None:
            break
        assert (found.truncated, found.returned, found.is_complete) == ("items", 2, False)
    assert numbers == [1, 2, 4, 1, 1], "of a.rs, b.py, and target.rs, which a glob names"
    assert skip == 5
    (tree / "long").write_text("x" * 5000 + "needle" + "y" * 5000)
    long = await host.files.search(tree, "needle", max_line_bytes=100)
    (line,) = long.files[0].lines
    assert "needle" in line.text
    assert line.omitted_before + line.omitted_after + len(line.text) == 10_006
    assert line.omitted_before > 0 < line.omitted_after
    small = await host.files.search(tree, "needle", max_bytes=1)
    assert (small.truncated, small.files) == ("bytes", ())


async def test_a_bad_search_is_refused(host: Host, tree: Path) -> None:
    with pytest.raises(RefusedError, match="is not a regular expression") as refusal:
        await host.files.search(tree, "(")
    assert refusal.value.kind == "invalidInput"
    with pytest.raises(FileNotFoundError):
        await host.files.search(tree / "missing", "x")
    word: Any = "words"
    with pytest.raises(TypeError, match="give a list of them"):
        await host.files.search(tree, "x", globs="*.rs")
    with pytest.raises(UsageError, match="use `lines`, `counts` or `files`"):
        await host.files.search(tree, "x", report=word)
    with pytest.raises(UsageError, match="timeout"):
        await host.files.search(tree, "x", timeout=-1)
    pattern: Any = b"x"
    with pytest.raises(TypeError, match="give text"):
        await host.files.search(tree, pattern)


def test_the_synchronous_face_searches(server: Server, tree: Path) -> None:
    with sync.connect(server.unix) as host:
        found = host.files.search(tree, "use", globs=["*.rs"])
        assert [(file.count, file.lines) for file in found.files] == [(1, (FoundLine(1, "use x;"),))]


async def test_a_search_is_repeated_after_a_disconnect_and_says_what_it_could_not_search() -> None:
    reply = {
        "files": [{"path": "file:///w/%FF", "count": 1}],
        "searched": 1,
        "ignored": 0,
        "binary": 0,
        "errors": [{"path": "/w/denied", "message": "permission denied"}],
        "truncated": "patience",
    }

    def answer(method: str, params: dict[str, Any]) -> Any:
        return None if server.connections == 1 and method == "fs/search" else reply

    async with ScriptedServer(answer) as server, remex_client.connect(server.url) as host:

        async def search() -> remex_client.SearchResult:
            return await host.files.search("/w", "x")

        async def disconnect() -> None:
            await server.received_message("the search", lambda message: message.get("method") == "fs/search")
            server.disconnect()

        found, _ = await within(10, "the result", asyncio.gather(search(), disconnect()))
        assert found.files == (FoundFile("/w/\udcff", 1),)
        assert found.errors == (("/w/denied", "permission denied"),)
        assert (found.truncated, found.is_complete) == ("patience", False)
        asked = [message["params"] for message in server.received if message.get("method") == "fs/search"]
        assert asked[0] == asked[1]
        assert asked[0]["options"]["maxItems"] == 500
