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


def make(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM / "build_wheel.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_wheel_has_the_program_and_says_whose_it_is(tmp_path: Path) -> None:
    version = build_wheel().version()
    program = tmp_path / "remex"
    program.write_text(f"#!/bin/sh\necho remex {version}\n")
    program.chmod(0o755)
    made = Path(make(tmp_path, program).stdout.strip())
    assert made.name.startswith(f"remex_program-{version}-py3-none-")
    with zipfile.ZipFile(made) as wheel:
        assert wheel.read(f"remex_program-{version}.data/scripts/remex") == program.read_bytes()
        metadata = wheel.read(f"remex_program-{version}.dist-info/METADATA").decode()
    for field in ("Name: remex-program", "Author: ", "Keywords: ", "Classifier: ", "License-Expression: "):
        assert f"\n{field}" in metadata
    refused = make("--audit", tmp_path, program)
    assert refused.returncode != 0
    assert "not a 64-bit Linux program" in refused.stderr
    program.write_text("#!/bin/sh\necho remex 0.0.1\n")
    refused = make(tmp_path, program)
    assert refused.returncode != 0
    assert "build it again" in refused.stderr


def test_the_wheel_of_a_static_program_is_for_every_c_library(tmp_path: Path) -> None:
    # One segment, no interpreter, no sections.
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, 0x400000, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    program = tmp_path / "static"
    program.write_bytes(header + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, 120, 120, 4096))
    (tags,) = build_wheel().choose([program]).values()
    assert [re.sub(r"\d+_\d+", "", tag) for tag in tags] == ["manylinux__aarch64", "musllinux__aarch64"]


def test_the_wheel_of_a_program_with_a_c_library_is_for_that_library() -> None:
    shell = Path("/bin/sh").resolve()
    if b"GLIBC_2" not in shell.read_bytes():
        pytest.skip("the shell of this machine does not use glibc")
    (tags,) = build_wheel().choose([shell]).values()
    assert [tag.split("_")[0] for tag in tags] == ["manylinux"]


def test_each_c_library_gets_the_first_program_that_runs_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = build_wheel()
    verdicts = {
        "gnu": {"manylinux": "manylinux_2_17"},
        "static": {"manylinux": "manylinux_2_5", "musllinux": "musllinux_1_2"},
        "local": {},
    }

    def verdict(program: Path, library: str) -> str | None:
        return verdicts[program.name].get(library)

    monkeypatch.setattr(module, "verdict", verdict)
    monkeypatch.setattr(module, "machine", lambda program: program.parent.name)
    gnu, static, other = Path("x86_64/gnu"), Path("x86_64/static"), Path("aarch64/static")
    assert module.choose([gnu, static, other]) == {
        gnu: ["manylinux_2_17"],
        static: ["musllinux_1_2"],
        other: ["manylinux_2_5", "musllinux_1_2"],
    }
    with pytest.raises(SystemExit, match="accepts it for no C library"):
        module.choose([Path("x86_64/local")])
