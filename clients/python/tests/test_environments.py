"""Environments by name, from the file of the program or from variables."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from harness import Server, remex

import remex_client
from remex_client import Program, Unix, UsageError, WebSocket
from remex_client._environments import Environment, find

TABLES = """
default = "build"

[[environments]]
id = "build"
program = "./ssh"
args = ["build.example", "remex", "proxy"]
env = {{ A = "b" }}
cwd = "work"
connect_timeout_sec = 5

[[environments]]
id = "gpu"
url = "ws://127.0.0.1:7070"
auth_bearer_token_file = "gpu.token"
connect_timeout_sec = 2.5
initialize_timeout_sec = 7
reconnect_timeout_sec = "forever"

[[environments]]
id = "socket"
url = "unix:s"

[[environments]]
id = "far"
url = "ssh://me@far:2222"

[[environments]]
id = "pinned"
url = "wss://vault.example:7070"
pin = "{pin}"
auth_bearer_token = "inline"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environments file is."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("REMEX_URL", "CODEX_EXEC_SERVER_URL"):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "remex" / "environments.toml"
    path.parent.mkdir()
    return path


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def test_each_transport_of_the_file_is_understood(file: Path) -> None:
    write(file, TABLES.format(pin="ab" * 32))
    write(file.parent / "gpu.token", "# for the gpu\ns3cret name=ci\n")
    directory = str(file.parent)
    program = Program((f"{directory}/./ssh", "build.example", "remex", "proxy"), {"A": "b"}, f"{directory}/work")
    assert find("build") == Environment(program, 5.0, 5.0)
    gpu = WebSocket("ws://127.0.0.1:7070", "s3cret")
    assert find("gpu") == Environment(gpu, 2.5, 7.0, float("inf"))
    assert find("socket").target == Unix(f"{directory}/s")
    far = find("far").target
    assert isinstance(far, Program)
    assert shlex.join(far.argv) == "ssh -T -oBatchMode=yes -p 2222 -- me@far remex proxy"
    pinned = find("pinned").target
    assert isinstance(pinned, WebSocket)
    assert (pinned.token, pinned.pin) == ("inline", bytes.fromhex("ab" * 32))
    assert find("local").target == Program(("remex", "proxy"))
    with pytest.raises(
        UsageError, match=r"unknown environment `nowhere`; known: build, gpu, socket, far, pinned, local"
    ):
        find("nowhere")


async def test_a_name_connects_to_the_environment(file: Path, server: Server) -> None:
    program = [remex(), "serve", "--listen", "stdio"]
    tables = f"[[environments]]\nid = 'ws'\nurl = '{server.websocket}'\n[[environments]]\nid = 'unix'\n"
    tables += f"url = '{server.unix}'\n[[environments]]\nid = 'stdio'\nprogram = '{program[0]}'\nargs = {program[1:]}\n"
    write(file, tables)
    for name in ("ws", "unix", "stdio"):
        async with remex_client.connect(name) as host:
            assert (await host.run(["echo", "there"])).text == "there\n"
    async with remex_client.connect(server.unix.removeprefix("unix://")) as host:
        assert (await host.run(["true"])).ok
    with pytest.raises(UsageError, match="says how to connect"):
        remex_client.connect("ws", token="token")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[environments]]\nid = 'x'", "either `url` or `program`"),
        ("[[environments]]\nid = 'x'\nurl = 'ws://h'\nprogram = 'p'", "either `url` or `program`"),
        ("[[environments]]\nid = 'x'\nurl = 'ftp://h'", "cannot use `ftp://h`"),
        ("[[environments]]\nid = 'x'\nprogram = 'p'\nargs = 'a'", "`args` is not a list"),
        ("[[environments]]\nid = 'x'\nurl = 'ws://h'\nconnect_timeout_sec = -1", "positive number of seconds"),
        ("[[environments]]\nid = 'x'\nurl = 'ws://h'\nauth_bearer_token_file = '~/t'", "which is not expanded"),
        ("[[environments]]\nid = 'x'\nurl = 'ws://h'\nauth_bearer_token_file = 'missing'", "cannot read"),
        ("[[environments]]\nid = 'x'\nurl = 'wss://h'\nclient_cert = 'c'", "need each other"),
        ("environments = 5", "not a list of tables"),
        ("nonsense", "cannot use"),
    ],
)
def test_errors_name_what_is_wrong_with_the_environments_file(file: Path, text: str, message: str) -> None:
    write(file, text)
    with pytest.raises(UsageError, match=message):
        find("x")


def test_a_file_that_others_can_write_is_refused(file: Path) -> None:
    write(file, "[[environments]]\nid = 'x'\nurl = 'ws://h'\nauth_bearer_token_file = 't'", 0o620)
    with pytest.raises(UsageError, match="chmod go-w"):
        find("x")
    file.chmod(0o600)
    write(file.parent / "t", "token", 0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        find("x")
    write(file.parent / "t", "# nothing\n")
    with pytest.raises(UsageError, match="is empty"):
        find("x")


def test_without_a_file_the_variable_is_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("local").target == Program(("remex", "proxy"))
    monkeypatch.setenv("CODEX_EXEC_SERVER_URL", "ws://second:1")
    monkeypatch.setenv("REMEX_URL", " /run/remex.sock ")
    assert find("remote").target == Unix("/run/remex.sock")
    with pytest.raises(UsageError, match="known: remote, local"):
        find("other")
    monkeypatch.setenv("REMEX_URL", "None")
    with pytest.raises(UsageError, match="REMEX_URL disables"):
        find("local")
