"""The shapes of asyncio.subprocess: those of CPython's own tests of it."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
from pathlib import Path

import pytest
from harness import within

from remex_client import Host, UsageError, asyncio_subprocess
from remex_client.asyncio_subprocess import DEVNULL, PIPE, STDOUT, create_subprocess_exec, create_subprocess_shell

#: More than the pipes and buffers on the way hold.
MUCH = bytes(4_000_000)


async def test_the_input_is_written_closed_and_answered(host: Host) -> None:
    process = await create_subprocess_exec(host, "cat", stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"some data")
    process.stdin.close()
    assert await within(10, "the output", process.stdout.read()) == b"some data"
    assert await within(10, "the exit", process.wait()) == 0
    await within(10, "the close", process.stdin.wait_closed())
    assert process.stdin.is_closing()


async def test_what_is_written_is_sent_without_a_drain(host: Host) -> None:
    process = await create_subprocess_exec(host, "cat", stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.writelines([b"one\n", b"two\n"])
    assert await within(10, "a line", process.stdout.readline()) == b"one\n"
    process.stdin.write_eof()
    assert await within(10, "the rest", process.stdout.read()) == b"two\n"
    with pytest.raises(RuntimeError):
        process.stdin.write(b"more")
    assert await process.wait() == 0


async def test_methods_without_a_result_are_plain_functions(host: Host) -> None:
    for name, code in (("kill", -signal.SIGKILL), ("terminate", -signal.SIGTERM)):
        process = await create_subprocess_exec(host, "sleep", "1000")
        assert getattr(process, name)() is None
        assert await within(10, "the exit", process.wait()) == code
        with pytest.raises(ProcessLookupError):
            getattr(process, name)()
    process = await create_subprocess_shell(host, "echo sleeping; exec sleep 1000", stdout=PIPE)
    assert process.stdout is not None
    assert await within(10, "the line", process.stdout.readline()) == b"sleeping\n"
    process.send_signal(signal.SIGHUP)
    assert await within(10, "the exit", process.communicate()) == (b"", None)
    assert process.returncode == -signal.SIGHUP


async def test_a_missing_program_is_a_file_not_found_error(host: Host, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await create_subprocess_exec(host, "/nowhere/at/all")
    with pytest.raises(FileNotFoundError):
        await create_subprocess_exec(host, "true", cwd=str(tmp_path / "missing"))
    (tmp_path / "plain").touch()
    with pytest.raises(PermissionError):
        await create_subprocess_exec(host, str(tmp_path / "plain"))


async def test_communicate_feeds_and_reads(host: Host) -> None:
    process = await create_subprocess_exec(host, "cat", stdin=PIPE, stdout=PIPE)
    assert await within(20, "the output", process.communicate(MUCH)) == (MUCH, None)
    none = await create_subprocess_exec(host, "cat", stdin=PIPE, stdout=PIPE)
    assert await within(10, "the output", none.communicate()) == (b"", None)
    both = await create_subprocess_shell(host, "echo out; echo err >&2; exit 3", stdout=PIPE, stderr=STDOUT)
    assert await both.communicate() == (b"out\nerr\n", None)
    assert both.returncode == 3


async def test_a_process_that_does_not_read_breaks_the_pipe(host: Host) -> None:
    process = await create_subprocess_shell(host, "exit 0", stdin=PIPE)
    assert process.stdin is not None
    await within(10, "the exit", process.wait())
    process.stdin.write(MUCH)
    with pytest.raises(BrokenPipeError):
        await within(10, "the drain", process.stdin.drain())
    ignored = await create_subprocess_shell(host, "exit 0", stdin=PIPE)
    await within(10, "communicate", ignored.communicate(MUCH))
    assert ignored.returncode == 0


async def test_drain_waits_while_the_process_does_not_read(host: Host) -> None:
    process = await create_subprocess_shell(host, "read -r line; cat > /dev/null", stdin=PIPE)
    assert process.stdin is not None
    process.stdin.write(b"line\n" + 4 * MUCH)
    await within(30, "the drain", process.stdin.drain())
    process.stdin.close()
    assert await within(10, "the exit", process.wait()) == 0


async def test_output_is_read_after_the_exit(host: Host) -> None:
    process = await create_subprocess_shell(host, "echo some data", stdout=PIPE)
    assert await within(10, "the exit", process.wait()) == 0
    assert process.stdout is not None
    assert await within(10, "the output", process.stdout.read()) == b"some data\n"


async def test_streams_that_are_not_piped_are_none(host: Host) -> None:
    process = await create_subprocess_exec(host, "cat", stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    assert (process.stdin, process.stderr) == (None, None)
    assert await within(10, "the end", process.communicate()) == (b"", None)


async def test_a_wait_may_be_cancelled(host: Host) -> None:
    process = await create_subprocess_exec(host, "sleep", "1000")
    wait = asyncio.create_task(process.wait())
    await asyncio.sleep(0)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert process.returncode is None
    process.kill()
    assert await within(10, "the exit", process.wait()) == -9


async def test_a_program_runs_as_another_user_where_the_server_is_root(host: Host) -> None:
    if os.geteuid() != 0:
        with pytest.raises(UsageError, match="does not support it"):
            await create_subprocess_exec(host, "id", user="daemon")
        return
    account = pwd.getpwnam("daemon")
    program = await create_subprocess_exec(host, "id", "-un", stdout=PIPE, user=account.pw_uid)
    assert await within(10, "the name", program.communicate()) == (b"daemon\n", None)
    line = await create_subprocess_shell(host, "id -un; pwd >&2", stdout=PIPE, stderr=STDOUT, user="daemon")
    assert await within(10, "name and home", line.communicate()) == (f"daemon\n{account.pw_dir}\n".encode(), None)
    there = await create_subprocess_exec(
        host, "pwd", stdout=PIPE, user="daemon", cwd="/", env={"PATH": "/usr/bin:/bin"}
    )
    assert await within(10, "the directory", there.communicate()) == (b"/\n", None)


async def test_options_of_text_are_refused(host: Host) -> None:
    for options in ({"universal_newlines": True}, {"encoding": "utf-8"}, {"text": True}, {"errors": "strict"}):
        with pytest.raises(ValueError):
            await create_subprocess_exec(host, "true", **options)
    process = await create_subprocess_exec(host, "true", stdin=PIPE, limit=1 << 16)
    assert process.stdin is not None
    text: object = "text"
    with pytest.raises(TypeError):
        process.stdin.write(text)  # type: ignore[arg-type]
    assert isinstance(process, asyncio_subprocess.Process)
    await process.communicate()
