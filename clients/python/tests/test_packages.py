"""The packages: what their indexes show, and which names they have."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from harness import ROOT

PROGRAM = ROOT / "clients" / "python-program"

#: A link that leads nowhere on a package index.
RELATIVE_LINK = re.compile(r"\]\((?!https?://|#|mailto:)")


def build_wheel() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_wheel", PROGRAM / "build_wheel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("directory", ["python", "python-program"])
def test_the_page_on_the_index_has_no_dead_links(directory: str) -> None:
    assert not RELATIVE_LINK.search((ROOT / "clients" / directory / "README.md").read_text())


def test_no_document_names_a_package_of_someone_else() -> None:
    foreign = re.compile(r"(pip3? install|uvx( --from)?|pipx (install|run)) +(remex|remex-cli)(?![\w./-])")
    folders = ("*.md", "docs/*.md", "clients/*/README.md", "crates/*/README.md", "packaging/**/*.md")
    documents = [path for folder in folders for path in ROOT.glob(folder)]
    assert documents
    assert [path for path in documents if foreign.search(path.read_text())] == []


def test_the_wheel_has_the_program_and_says_whose_it_is(tmp_path: Path) -> None:
    program = tmp_path / "remex"
    program.write_text("#!/bin/sh\necho remex 1.2.3\n")
    program.chmod(0o755)
    command = [sys.executable, str(PROGRAM / "build_wheel.py"), str(program), str(tmp_path)]
    made = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    assert made.name.startswith("remex_program-1.2.3-py3-none-")
    with zipfile.ZipFile(made) as wheel:
        assert wheel.read("remex_program-1.2.3.data/scripts/remex") == program.read_bytes()
        metadata = wheel.read("remex_program-1.2.3.dist-info/METADATA").decode()
    for field in ("Name: remex-program", "Author: ", "Keywords: ", "Classifier: ", "License-Expression: "):
        assert f"\n{field}" in metadata
    # An index takes a static program only.
    refused = subprocess.run([*command, "x86_64-unknown-linux-musl"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "not static" in refused.stderr


def test_a_static_program_runs_on_every_linux() -> None:
    def elf(*kinds: int) -> bytes:
        head = b"\x7fELF\x02" + bytes(27) + struct.pack("<Q", 64) + bytes(14) + struct.pack("<HH", 56, len(kinds))
        return head.ljust(64, b"\0") + b"".join(struct.pack("<I", kind) + bytes(52) for kind in kinds)

    module = build_wheel()
    tags = ["manylinux_2_17_aarch64", "musllinux_1_1_aarch64"]
    assert module.platforms("aarch64-unknown-linux-musl", elf(6, 1)) == tags
    for program in (elf(6, 3, 1), b"#!/bin/sh"):
        with pytest.raises(SystemExit, match="not static"):
            module.platforms("aarch64-unknown-linux-musl", program)
    with pytest.raises(SystemExit):
        module.platforms("x86_64-unknown-linux-gnu", elf(1))
