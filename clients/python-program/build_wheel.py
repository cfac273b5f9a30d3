"""Makes wheels that put the program `remex` into the `bin` of a Python environment.

usage: build_wheel.py DIRECTORY PROGRAM
       build_wheel.py --audit DIRECTORY PROGRAM...

The first makes a wheel for this machine only, which package indexes refuse, and needs nothing but Python.
The second makes wheels for package indexes. `auditwheel`, a module of this Python, says which C libraries a program runs
with, and from which version on; that is the tag of the wheel. Each kind of machine gets, for each C library, the first of
the programs that run with it.

The same program makes the same wheel.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pathlib
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: `remex` and `remex-cli` belong to others on PyPI.
NAME = "remex-program"

METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: Run processes, copy files and make HTTP requests on remote hosts, and survive disconnects
Author: The remex authors
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
Keywords: remote,process,exec,terminal,agent,mcp
Classifier: Development Status :: 4 - Beta
Classifier: Environment :: Console
Classifier: Intended Audience :: Developers
Classifier: Intended Audience :: System Administrators
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Rust
Classifier: Topic :: System :: Distributed Computing
Classifier: Topic :: System :: Systems Administration
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{readme}"""

#: The names of machines by their number in ELF files.
MACHINES = {62: "x86_64", 183: "aarch64"}

#: The C libraries that indexes know, each with the oldest tag that a wheel can have.
LIBRARIES = {"manylinux": "manylinux_2_5", "musllinux": "musllinux_1_1"}


def machine(program: pathlib.Path) -> str:
    """Returns the kind of machine that an ELF program is for, as wheels name it."""
    head = program.read_bytes()[:20]
    number = int.from_bytes(head[18:20], "little")
    if head[:6] != b"\x7fELF\x02\x01" or number not in MACHINES:
        sys.exit(f"no wheel of {program}: it is not a 64-bit Linux program for {' or '.join(MACHINES.values())}")
    return MACHINES[number]


def verdict(program: pathlib.Path, library: str) -> str | None:
    """Returns the tag that auditwheel gives to a program, or None if it does not run with this C library."""
    with tempfile.TemporaryDirectory() as place:
        # The name of a wheel says against which C library and for which machine auditwheel judges.
        path = write([f"{LIBRARIES[library]}_{machine(program)}"], program, pathlib.Path(place), compression=1)
        command = [sys.executable, "-m", "auditwheel", "show", "--json", str(path)]
        said = subprocess.run(command, capture_output=True, text=True)
    try:
        audit = json.loads(said.stdout)
    except ValueError:
        sys.exit(f"no wheel of {program}: auditwheel does not judge it; see scripts/python/install\n{said.stderr}")
    tag = audit.get("overall_tag", "")
    return tag if tag.startswith(f"{library}_") else None


def choose(programs: list[pathlib.Path]) -> dict[pathlib.Path, list[str]]:
    """Returns the programs that are packed, and the tags of their wheels."""
    chosen: dict[pathlib.Path, list[str]] = {}
    taken = set()
    for program in programs:
        tags = []
        for library in LIBRARIES:
            if (machine(program), library) not in taken and (tag := verdict(program, library)):
                taken.add((machine(program), library))
                tags.append(tag)
        if tags:
            chosen[program] = tags
        elif not any(name == machine(program) for name, _ in taken):
            sys.exit(f"no wheel of {program}: auditwheel accepts it for no C library; build it as scripts/release does")
    return chosen


def version() -> str:
    """Returns the version of the workspace, which is that of the program."""
    manifest = (ROOT / "Cargo.toml").read_text()
    found = re.search(r'^\[workspace\.package\]$.*?^version = "(.*?)"$', manifest, re.MULTILINE | re.DOTALL)
    assert found is not None, "Cargo.toml has no version"
    return found[1]


def check_version(program: pathlib.Path) -> None:
    """Exits unless a program says the version of the workspace."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if said != f"remex {version()}":
        sys.exit(f"no wheel of {program}: it says `{said}`, and Cargo.toml has version {version()}; build it again")


def write(tags: list[str], program: pathlib.Path, directory: pathlib.Path, compression: int = 9) -> pathlib.Path:
    """Writes a wheel with these platform tags, and returns its path."""
    base = f"{NAME.replace('-', '_')}-{version()}"
    info = f"{base}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: remex\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    metadata = METADATA.format(name=NAME, version=version(), readme=(HERE / "README.md").read_text())
    members = {
        f"{base}.data/scripts/remex": (program.read_bytes(), 0o755),
        f"{info}/METADATA": (metadata.encode(), 0o644),
        f"{info}/WHEEL": (wheel.encode(), 0o644),
        f"{info}/licenses/LICENSE-MIT": ((ROOT / "LICENSE-MIT").read_bytes(), 0o644),
        f"{info}/licenses/LICENSE-APACHE": ((ROOT / "LICENSE-APACHE").read_bytes(), 0o644),
    }
    record = ""
    for name, (data, _) in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    record += f"{info}/RECORD,,\n"
    members[f"{info}/RECORD"] = (record.encode(), 0o644)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base}-py3-none-{'.'.join(tags)}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=compression) as archive:
        for name, (data, mode) in members.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=compression)
    return path


def main(arguments: list[str]) -> None:
    """Makes the wheels, and prints their paths."""
    audited = arguments[:1] == ["--audit"]
    places = [pathlib.Path(argument) for argument in arguments[audited:]]
    if len(places) < 2 or (len(places) > 2 and not audited):
        sys.exit(__doc__)
    directory, *programs = places
    for program in programs:
        if not audited or machine(program) == platform.machine():
            check_version(program)
    this = re.sub(r"\W", "_", sysconfig.get_platform())
    chosen = choose(programs) if audited else {programs[0]: [this]}
    for program, tags in chosen.items():
        print(write(tags, program, directory))


if __name__ == "__main__":
    main(sys.argv[1:])
