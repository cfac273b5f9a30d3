"""Types, lints and the form of all files, as pyproject.toml configures them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent

#: The longest that one of them may take on a machine that does many other things.
PATIENCE = 300


@pytest.mark.parametrize(
    "check",
    [
        # Nothing is written beside the sources.
        ["mypy", "--cache-dir=/dev/null"],
        ["ruff", "check", "--no-cache"],
        ["ruff", "format", "--check", "--no-cache"],
    ],
    ids=lambda check: " ".join(check[:2]),
)
def test_the_sources_pass(check: list[str]) -> None:
    command = [sys.executable, "-m", *check]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"`{' '.join(check)}` took longer than {PATIENCE} s")
    assert done.returncode == 0, done.stdout + done.stderr
