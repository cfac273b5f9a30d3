"""Writes `src/remex_client/models.py`, the types of params and results, from `spec/protocol.schema.json`.

Run it after the schema has changed; a test compares the file.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCHEMA = HERE.parents[2] / "spec" / "protocol.schema.json"
OUTPUT = HERE.parent / "src" / "remex_client" / "models.py"

HEAD = '''"""The params and results of the protocol, as they are on the wire.

Generated from spec/protocol.schema.json by scripts/generate_models.py; do not edit.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict
'''

Schema = dict[str, Any]


def generate(schema: Schema) -> str:
    """Returns the module."""
    definitions: dict[str, Schema] = schema["$defs"]
    parts = [HEAD]
    names = sorted(reachable(schema, definitions))
    for name in names:
        parts.append(definition(name, definitions[name]))
    parts.append("#: The params and the result of each method, by their names in this module.")
    parts.append("METHODS: dict[str, tuple[str, str]] = {")
    methods: dict[str, Schema] = schema["methods"]
    for method, entry in sorted(methods.items()):
        parts.append(f'    "{method}": ("{reference(entry["params"])}", "{reference(entry["result"])}"),')
    parts.append("}\n")
    exported = ", ".join(f'"{name}"' for name in ["METHODS", *names])
    wrapped = textwrap.fill(exported, 110, initial_indent="    ", subsequent_indent="    ")
    parts.append(f"__all__ = [\n{wrapped},\n]\n")
    return "\n".join(parts)


def reachable(schema: Schema, definitions: dict[str, Schema]) -> set[str]:
    """Returns the definitions that params and results consist of, without the envelopes of messages."""
    found: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, list):
            for item in node:
                visit(item)
        elif isinstance(node, dict):
            name = node.get("$ref")
            if isinstance(name, str) and (name := name.rpartition("/")[2]) not in found:
                found.add(name)
                visit(definitions[name])
            for key, value in node.items():
                if key != "$ref":
                    visit(value)

    for group in ("methods", "serverMethods", "clientNotifications", "serverNotifications"):
        for entry in schema[group].values():
            visit([entry["params"], entry.get("result")])
    visit({"$ref": "#/$defs/RpcError"})
    return found


def definition(name: str, schema: Schema) -> str:
    """Returns a class or an alias."""
    about = schema.get("description", "")
    if "properties" not in schema:
        comment = "\n".join(f"#: {line}".rstrip() for line in wrap(about, 107)) + "\n" if about else ""
        target = expression(schema)
        return f'{comment}{name}: TypeAlias = "{target}"\n' if '"' not in target else f"{comment}{name} = {target}\n"
    required = set(schema.get("required", ()))
    members = schema["properties"]
    always = [member for member in members if member in required]
    sometimes = [member for member in members if member not in required]
    docstring = f'    """{chr(10).join(indent(wrap(about, 102)))}"""\n' if about else ""
    if not always or not sometimes:
        total = ", total=False" if not always else ""
        return f"class {name}(TypedDict{total}):\n{docstring}{fields(always + sometimes, members)}"
    base = f"class _{name}(TypedDict):\n{fields(always, members)}\n"
    return f"{base}\nclass {name}(_{name}, total=False):\n{docstring}{fields(sometimes, members)}"


def fields(names: list[str], members: dict[str, Schema]) -> str:
    """Returns the members of a class."""
    lines: list[str] = []
    for name in names:
        about = members[name].get("description")
        lines.extend(f"    #: {line}".rstrip() for line in wrap(about, 103))
        lines.append(f"    {name}: {expression(members[name])}")
    return "\n".join(lines) + "\n" if lines else "    pass\n"


def expression(schema: Schema) -> str:
    """Returns the type of a value."""
    if "$ref" in schema:
        return reference(schema)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return join([expression(option) for option in schema[union]])
    if "const" in schema:
        return f'Literal["{schema["const"]}"]'
    if "enum" in schema:
        return "Literal[" + ", ".join(f'"{word}"' for word in schema["enum"]) + "]"
    kinds = schema.get("type", [])
    return join([simple(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)])


def simple(kind: str, schema: Schema) -> str:
    """Returns the type for one word of JSON Schema."""
    if kind == "array":
        return f"list[{expression(schema.get('items', {}))}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {expression(values)}]" if isinstance(values, dict) else "dict[str, Any]"
    return {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}[kind]


def join(options: list[str]) -> str:
    """Returns a union; a list of words that may grow is just text."""
    if "str" in options:
        options = [option for option in options if not option.startswith("Literal[")]
    return " | ".join(dict.fromkeys(options)) or "Any"


def reference(schema: Schema) -> str:
    """Returns the name of a definition."""
    return str(schema["$ref"]).rpartition("/")[2]


def wrap(text: str | None, width: int) -> list[str]:
    """Returns the first paragraph in lines."""
    return textwrap.wrap((text or "").split("\n\n")[0].replace('"""', "'''"), width)


def indent(lines: list[str]) -> list[str]:
    """Indents all lines but the first."""
    return lines[:1] + [f"    {line}" for line in lines[1:]]


if __name__ == "__main__":
    module = generate(json.loads(SCHEMA.read_text()))
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if OUTPUT.read_text() == module else "models.py is stale: run scripts/generate_models.py")
    OUTPUT.write_text(module)
