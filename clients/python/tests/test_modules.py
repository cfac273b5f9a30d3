"""How the files of the client depend on each other, and how long they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
PACKAGE = HERE / "src" / "remex_client"

#: Their length follows from the protocol and from the asynchronous classes.
GENERATED = {"models.py", "sync.py"}

MAX_LINES = 600


def imported(text: str, modules: set[str]) -> set[str]:
    """Returns the modules of the package that a file imports, wherever in the file it does so."""
    return {module for node in ast.walk(ast.parse(text)) for module in _named(node, modules)}


def _named(node: ast.AST, modules: set[str]) -> Iterator[str]:
    paths: list[list[str]] = []
    if isinstance(node, ast.Import):
        paths = [alias.name.split(".") for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parent = ["remex_client"] if node.level else []
        parent += node.module.split(".") if node.module else []
        paths = [[*parent, alias.name] for alias in node.names]
    for package, *rest in paths:
        if package == "remex_client":
            yield rest[0] if rest and rest[0] in modules else "__init__"


def imports_by_name(text: str) -> bool:
    """Returns whether a file imports modules by names that only running it tells."""
    names = {"import_module", "__import__"}
    return any(
        (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.alias) and node.name in names)
        for node in ast.walk(ast.parse(text))
    )


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Returns the modules of a circle, if there is one."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_files_do_not_import_each_other_in_circles() -> None:
    texts = {path.stem: path.read_text() for path in PACKAGE.glob("*.py")}
    assert len(texts) == len(list(PACKAGE.rglob("*.py"))), "the imports of folders are not followed"
    assert [module for module, text in texts.items() if imports_by_name(text)] == []
    imports = {module: imported(text, set(texts)) for module, text in texts.items()}
    assert imports["_session"] >= {"_queue", "_connector"}
    assert circle(imports) == []


def test_imports_are_found_wherever_they_are() -> None:
    text = """
from typing import TYPE_CHECKING
import remex_client.a
from . import b
from remex_client import c
if TYPE_CHECKING:
    from .d import D
def later():
    from .e import E
    import json
"""
    modules = set("abcdef")
    assert imported(text, modules) == set("abcde")
    assert imported("from remex_client import connect", modules) == {"__init__"}
    assert imports_by_name('def later():\n    importlib.import_module("remex_client.a")')
    assert imports_by_name("from importlib import import_module as load")
    assert not imports_by_name("import importlib.metadata")
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []
    assert circle({"a": imported("def later():\n    from .b import B", modules), "b": {"a"}}) != []
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_no_file_is_too_long() -> None:
    files = [path for folder in ("src", "tests", "scripts", "examples") for path in (HERE / folder).rglob("*.py")]
    assert len(files) > 40
    lengths = {path.name: len(path.read_text().splitlines()) for path in files if path.name not in GENERATED}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
