"""Uses the tools through the Python SDK: `sdk.py DIRECTORY stdio PROGRAM ARG...` or `sdk.py DIRECTORY http URL TOKEN`."""

import asyncio
import contextlib
import os
import re
import sys
import time
from pathlib import Path

from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

directory, how, *rest = Path(sys.argv[1]), *sys.argv[2:]


@contextlib.asynccontextmanager
async def connect():
    async with contextlib.AsyncExitStack() as stack:
        if how == "stdio":
            server = StdioServerParameters(command=rest[0], args=rest[1:], env=dict(os.environ))
            streams = await stack.enter_async_context(stdio_client(server))
        else:
            headers = {"authorization": f"Bearer {rest[1]}"}
            http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
            streams = await stack.enter_async_context(streamable_http_client(rest[0], http_client=http))
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
        await session.initialize()
        yield session


async def until(what, condition):
    """Waits until something is so."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        await asyncio.sleep(0.02)


async def first():
    async with connect() as session:
        for tool in (await session.list_tools()).tools:
            read_only = re.match("(read|list|search)_", tool.name) is not None
            assert tool.annotations.read_only_hint is read_only, tool.name
            assert tool.annotations.destructive_hint is not read_only, tool.name

        failed = await session.call_tool("run_command", {"command": "echo out; echo err >&2; exit 3"})
        assert failed.structured_content["exit_code"] == 3, failed
        assert sorted(failed.structured_content["output"].split()) == ["err", "out"], failed
        assert "ended with exit code 3" in failed.content[0].text, failed

        # Progress comes while the command runs: it ends only because of it.
        async def on_progress(progress, total, message):
            (directory / "go").touch()

        waiting = {"command": f"until [ -e {directory}/go ]; do sleep 0.05; done; echo done"}
        told = await session.call_tool("run_command", waiting, progress_callback=on_progress)
        assert told.structured_content["output"] == "done\n", told

        # Files, and edits that notice others.
        path = str(directory / "file")
        written = await session.call_tool("write_file", {"path": path, "content": "one\ntwo\n"})
        edits = {"path": path, "edits": [{"old": "two", "new": "2"}], "if_match": written.structured_content["hash"]}
        assert (await session.call_tool("edit_file", edits)).structured_content["replacements"] == 1
        assert (await session.call_tool("edit_file", edits)).is_error
        assert (directory / "file").read_text() == "one\n2\n"

        kept = {"command": "echo ready; read line; echo got $line", "name": "kept", "input": "pipe", "wait_seconds": 0}
        assert (await session.call_tool("run_command", kept)).structured_content["running"]


async def second():
    # A process survives its client, and the next one finds it by name.
    async with connect() as session:
        processes = (await session.call_tool("list_processes", {})).structured_content["processes"]
        assert any(process["process"] == "kept" and process["running"] for process in processes), processes
        line = {"process": "kept", "text": "it\n", "wait_for": "got it"}
        answered = await session.call_tool("send_input", line)
        assert "got it\n" in answered.structured_content["output"], answered


async def main():
    await first()
    await second()
    print("ok")


asyncio.run(asyncio.wait_for(main(), 300))
