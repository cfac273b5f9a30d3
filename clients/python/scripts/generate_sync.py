"""Writes `src/remex_client/sync.py`, the synchronous face, from the classes of the asynchronous one.

Run it after a public method has changed; a test compares the file.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "remex_client"
OUTPUT = PACKAGE / "sync.py"

#: The classes that get a synchronous face, by module, in the order of the file.
CLASSES = {
    "_streams": ["PolledEvents", "Events", "Chunks", "Reader"],
    "_lines": ["Lines"],
    "_stdin": ["Stdin"],
    "_process": ["ProcessRef", "Process"],
    "_transfer": ["RemoteReader", "RemoteWriter"],
    "_text_file": ["RemoteTextReader", "RemoteTextWriter"],
    "_files": ["Watch", "Files"],
    "_http": ["StreamingResponse", "Http"],
    "_observe": ["ObservedEvents"],
    "_host": ["Host"],
    "agent": ["Agent"],
}

#: Classes whose loops are written by hand, and the class that has them instead of `Face`.
LOOPS = {"Lines": "LineFace"}

#: The methods that are such loops.
LOOP_METHODS = ("__anext__", "batches")

WRAPPED = {name for names in CLASSES.values() for name in names}

#: Attributes that the classes set in their constructors.
ATTRIBUTES = {
    "ProcessRef": {"id": "str", "session_id": "str | None"},
    "Process": {"pid": "int | None", "stdin": "Stdin"},
    "Stdin": {"is_open": "bool"},
    "StreamingResponse": {"status": "int", "headers": "tuple[tuple[str, str], ...]"},
    "Host": {"files": "Files", "http": "Http"},
}

HEAD = '''"""The same as `remex_client`, without `await`: one thread with an event loop does the work.

    from remex_client import sync

    with sync.connect("ws://127.0.0.1:7070") as host:
        print(host.run(["uname", "-a"]).text)

Everything may be called from any thread; Ctrl-C cancels a call. Generated from the asynchronous classes by
scripts/generate_sync.py; do not edit.
"""

from __future__ import annotations

'''

CONNECT = '''

def connect({signature}) -> Host:
    """Connects to a server; use it in `with`, or call `close` or `end`.

    The arguments are those of `remex_client.connect`.
    """

    async def make() -> _host.Host:
        return await _host.connect({arguments})

    portal = Portal.shared()
    return Host(portal, portal.run(make()))
'''


class Source:
    """The asynchronous classes and what their modules import."""

    def __init__(self) -> None:
        self.classes: dict[str, tuple[str, ast.ClassDef]] = {}
        self.imports: dict[str, str] = {}
        self.used: set[str] = set()
        for module, names in CLASSES.items():
            tree = ast.parse((PACKAGE / f"{module}.py").read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    source = "." * node.level + (node.module or "")
                    for alias in node.names:
                        self.imports.setdefault(alias.name, f"from {source} import {alias.name}")
                elif isinstance(node, ast.Import):
                    for alias in node.names:
                        self.imports.setdefault(alias.name, f"import {alias.name}")
            for top in tree.body:
                if isinstance(top, ast.ClassDef):
                    if top.name in names:
                        self.classes[top.name] = (module, top)
                    self.imports.setdefault(top.name, f"from .{module} import {top.name}")
                elif isinstance(top, ast.Assign) and isinstance(top.targets[0], ast.Name):
                    name = top.targets[0].id
                    self.imports.setdefault(name, f"from .{module} import {name}")
            if module == "_host":
                self.connect = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "connect")

    def note(self, annotation: ast.expr | None) -> str:
        """Remembers the names in an annotation, and returns it for the synchronous face."""
        if annotation is None:
            return "None"
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name):
                self.used.add(node.id)
        return ast.unparse(annotation).replace("AsyncIterator[", "Iterator[")

    def signature(self, arguments: ast.arguments) -> str:
        """Returns the parameters with their types."""
        for argument in [*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
            if argument is not None:
                self.note(argument.annotation)
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            self.note(default)
        return ast.unparse(arguments)

    def module(self) -> str:
        """Returns the module."""
        body = "".join(self.wrapper(name) for name in self.classes)
        passed = ", ".join(["target", *(f"{a.arg}={a.arg}" for a in self.connect.args.kwonlyargs)])
        body += CONNECT.format(signature=self.signature(self.connect.args), arguments=passed)
        lines = {self.imports[name] for name in self.used - WRAPPED if name in self.imports}
        lines |= {f"from . import {module}" for module in CLASSES}
        lines |= {f"from ._line_face import {face}" for face in LOOPS.values()}
        lines |= {"from types import TracebackType", "from ._portal import Face", "from ._portal import Portal"}
        lines = {line.replace("AsyncIterator", "Iterator") for line in lines}
        # What only a type checker needs may not be installed.
        typing_only = {line for line in lines if line.startswith("from typing_extensions ")}
        if typing_only:
            lines.add("from typing import TYPE_CHECKING")
            body = "\nif TYPE_CHECKING:\n    " + "\n    ".join(sorted(typing_only)) + "\n" + body
        lines -= typing_only
        exported = "".join(f'    "{name}",\n' for name in sorted(WRAPPED)) + '    "connect",\n'
        return HEAD + imports(lines) + body + f"\n\n__all__ = [\n{exported}]\n"

    def wrapper(self, name: str) -> str:
        """Returns the synchronous face of a class."""
        module, node = self.classes[name]
        bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in WRAPPED]
        parent = bases[0] if bases else LOOPS.get(name, f"Face[{module}.{name}]")
        about = (ast.get_docstring(node) or "").replace("async with await ", "with ").replace("async with ", "with ")
        about = about.replace("async for ", "for ").replace("await ", "")
        lines = [f"\n\nclass {name}({parent}):", docstring(about, 4)]
        if bases:
            lines.append(f"    _inner: {module}.{name}\n")
        for attribute, kind in ATTRIBUTES.get(name, {}).items():
            lines.append(f"    @property\n    def {attribute}(self) -> {kind}:")
            lines.append(f"        return {wrapped(kind, f'self._inner.{attribute}')}\n")
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                lines.append(self.method(name, member))
        return "\n".join(line for line in lines if line)

    def method(self, owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        """Returns the face of a method, or nothing if it is private or written by hand."""
        if owner in LOOPS and node.name in LOOP_METHODS:
            return ""
        if node.name == "__anext__":
            result = self.note(node.returns)
            each = f"    def __iter__(self) -> Iterator[{result}]:\n        return self._each(self._inner)\n\n"
            self.used.add("Iterator")
            self.imports.setdefault("Iterator", "from collections.abc import Iterator")
            return each + (f"    def __next__(self) -> {result}:\n        return self._next(self._inner)\n")
        if node.name == "__aenter__":
            enter = "self._run(self._inner.__aenter__())"
            return f"    def __enter__(self) -> {owner}:\n        {enter}\n        return self\n"
        if node.name == "__aexit__":
            arguments = "kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None"
            call = "self._run(self._inner.__aexit__(kind, error, trace))"
            return f"    def __exit__(self, {arguments}) -> None:\n        {call}\n"
        if node.name.startswith("_"):
            return ""
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        if any(decorator in ("classmethod", "staticmethod") for decorator in decorators):
            return ""
        result = self.note(node.returns)
        signature = self.signature(without_private(node.args))
        about = docstring(ast.get_docstring(node) or "", 8, sync=True)
        head = (
            "".join(f"    @{decorator}\n" for decorator in decorators)
            + f"    def {node.name}({signature}) -> {result}:"
        )
        if "overload" in decorators:
            self.used.add("overload")
            return f"{head} ..."
        if "property" in decorators:
            # Those that give a face may make something, which has to happen on the event loop.
            value = f"self._inner.{node.name}"
            value = f"self._call(lambda: {value})" if result in WRAPPED else value
            return f"{head}\n{about}        return {wrapped(result, value)}\n"
        arguments = ", ".join(passed(node.args))
        call = f"self._inner.{node.name}({arguments})"
        if result.startswith("Iterator["):
            return f"{head}\n{about}        return self._iterate({call})\n"
        call = f"self._run({call})" if isinstance(node, ast.AsyncFunctionDef) else f"self._call(lambda: {call})"
        if result == "None":
            return f"{head}\n{about}        {call}\n"
        if faces := union(result):
            wrap = ", ".join([call, *faces])
            return f"{head}\n{about}        face: {result} = self._wrap({wrap})\n        return face\n"
        return f"{head}\n{about}        return {wrapped(result, call)}\n"


def imports(lines: set[str]) -> str:
    """Returns import statements: those of the standard library first, and one for each module."""
    grouped: dict[str, set[str]] = {}
    for line in lines:
        source, _, name = line.removeprefix("from ").partition(" import ")
        grouped.setdefault(source, set()).add(name)
    plain = sorted(source for source in grouped if source.startswith("import "))
    standard = sorted(source for source in grouped if not source.startswith(("import ", ".")))
    own = sorted(source for source in grouped if source.startswith("."))
    text = "\n".join(plain) + "\n"
    for group in (standard, own):
        text += "".join(f"from {source} import {', '.join(sorted(grouped[source]))}\n" for source in group) + "\n"
    return text.rstrip() + "\n"


def wrapped(kind: str, value: str) -> str:
    """Returns an expression for the face of a value."""
    return f"{kind}(self._portal, {value})" if kind in WRAPPED else value


def union(kind: str) -> list[str]:
    """Returns the faces among which the class of a value decides, if there are several."""
    options = [option.strip() for option in kind.split("|")]
    return options if len(options) > 1 and set(options) <= WRAPPED else []


def without_private(arguments: ast.arguments) -> ast.arguments:
    """Drops parameters that are not for callers."""
    kept = [
        (argument, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if not argument.arg.startswith("_")
    ]
    arguments.kwonlyargs = [argument for argument, _ in kept]
    arguments.kw_defaults = [default for _, default in kept]
    return arguments


def passed(arguments: ast.arguments) -> list[str]:
    """Returns the arguments of a call with the same parameters."""
    names = [argument.arg for argument in arguments.args[1:]]
    names += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    return names + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def docstring(text: str, indent: int, sync: bool = False) -> str:
    """Returns a docstring, with the examples in synchronous form."""
    if not text:
        return ""
    if sync:
        text = text.replace("async with await ", "with ").replace("async with ", "with ").replace("async for ", "for ")
        text = (
            text.replace("= await ", "= ")
            .replace(" in await ", " in ")
            .replace("(await ", "(")
            .replace("    await ", "    ")
        )
    space = " " * indent
    lines = text.replace("\\", "\\\\").split("\n")
    inner = "\n".join([lines[0], *(f"{space}{line}" if line else "" for line in lines[1:])])
    end = f"\n{space}" if len(lines) > 1 else ""
    return f'{space}"""{inner}{end}"""\n'


if __name__ == "__main__":
    module = Source().module()
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if OUTPUT.read_text() == module else "sync.py is stale: run scripts/generate_sync.py")
    OUTPUT.write_text(module)
