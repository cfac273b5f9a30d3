"""Tools for a language model: plain typed functions that run on a remote host.

`Tools.schemas()` describes them as JSON Schema, as the APIs of OpenAI and Anthropic want it; a framework that inspects
functions, such as pydantic-ai, takes the methods themselves:

    agent = pydantic_ai.Agent(model, tools=list(tools.functions().values()))

The loop in `converse` is the usual one. `Model` is where the API of a provider goes; `ScriptedModel` follows a script,
so that this file runs without a network:

    python examples/agent_tools.py unix:///run/remex.sock
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, get_type_hints

import remex_client
from remex_client.agent import Agent, Limits

Message = dict[str, Any]


class Tools:
    """What a model may do on a host, in one directory."""

    def __init__(self, host: remex_client.Host, directory: str) -> None:
        self._host = host
        self._directory = directory
        self._agent = Agent(host, Limits(output_bytes=8 << 10))

    async def run_command(self, command: str, seconds: float = 10) -> dict[str, Any]:
        """Run a shell command. If it is still running after some seconds, continue it by its handle."""
        step = await self._agent.exec(command, cwd=self._directory, yield_after=seconds)
        return step.to_json()

    async def continue_command(self, handle: int, stdin: str = "", seconds: float = 10) -> dict[str, Any]:
        """Wait for a running command, and write to its standard input first if there is anything to write."""
        return (await self._agent.write(handle, stdin, yield_after=seconds)).to_json()

    async def stop_command(self, handle: int) -> dict[str, Any]:
        """End a running command with everything that it started."""
        await self._agent.terminate(handle)
        return (await self._agent.write(handle)).to_json()

    async def read_file(self, path: str) -> dict[str, Any]:
        """Read a text file."""
        return {"text": await self._host.files.read_text(self._absolute(path), errors="replace")}

    async def write_file(self, path: str, text: str) -> dict[str, Any]:
        """Create a text file, or replace its content."""
        await self._host.files.write_text(self._absolute(path), text, atomic=True)
        return {"bytes": len(text.encode())}

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self._directory}/{path}"

    def functions(self) -> dict[str, Callable[..., Awaitable[dict[str, Any]]]]:
        """Returns the tools by name."""
        tools = (self.run_command, self.continue_command, self.stop_command, self.read_file, self.write_file)
        return {tool.__name__: tool for tool in tools}

    def schemas(self) -> list[dict[str, Any]]:
        """Describes the tools as JSON Schema."""
        return [_schema(name, function) for name, function in self.functions().items()]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Calls a tool; what goes wrong is an answer, too, so that the model can do something about it."""
        function = self.functions().get(name)
        if function is None:
            return json.dumps({"error": f"there is no tool `{name}`"})
        try:
            inspect.signature(function).bind(**arguments)
            return json.dumps(await function(**arguments))
        except (remex_client.RemexError, TypeError) as error:
            return json.dumps({"error": str(error)})


_JSON_TYPES = {str: "string", int: "integer", float: "number"}


def _schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function)
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": inspect.getdoc(function),
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": _JSON_TYPES[hints[parameter]]} for parameter in parameters},
                "required": [p for p, value in parameters.items() if value.default is inspect.Parameter.empty],
            },
        },
    }


class Model(Protocol):
    """A language model: it answers with text, or calls a tool."""

    async def next(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> str | tuple[str, dict[str, Any]]:
        """Returns an answer, or the name of a tool with its arguments."""
        ...


async def converse(model: Model, tools: Tools, question: str) -> str:
    """Lets a model use tools until it has an answer."""
    messages: list[Message] = [{"role": "user", "content": question}]
    for number in range(50):
        answer = await model.next(messages, tools.schemas())
        if isinstance(answer, str):
            return answer
        name, arguments = answer
        call = {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": await tools.call(name, arguments)})
    raise RuntimeError("the model did not come to an answer")


class ScriptedModel:
    """A model that follows a script."""

    def __init__(self, script: Sequence[str | tuple[str, dict[str, Any]]]) -> None:
        self._script = iter(script)
        #: The messages of each turn.
        self.seen: list[list[Message]] = []

    async def next(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> str | tuple[str, dict[str, Any]]:
        """Returns the next line of the script."""
        self.seen.append(list(messages))
        return next(self._script)


async def main(target: str) -> None:
    """Runs a short script."""
    async with remex_client.connect(target) as host:
        directory = (await host.run("mktemp -d", check=True)).text.strip()
        model = ScriptedModel([("run_command", {"command": "uname -sr; nproc"}), "That was all."])
        print(await converse(model, Tools(host, directory), "What kind of machine is this?"))
        print(model.seen[-1][-1]["content"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
