"""Makes a wheel that puts the program `remex` into the `bin` of a Python environment.

usage: build_wheel.py PROGRAM DIRECTORY [TARGET]

TARGET is a Rust target triple, such as x86_64-unknown-linux-musl; without it, the wheel is for this machine only.
Needs nothing but Python. The same program makes the same wheel.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import subprocess
import sys
import sysconfig
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

METADATA = """Metadata-Version: 2.4
Name: remex-cli
Version: {version}
Summary: Run processes, copy files and make HTTP requests on remote hosts, and survive disconnects
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{readme}"""


def platforms(target: str | None) -> list[str]:
    """Returns the platforms that a program for this target runs on, as wheels name them."""
    if target is None:
        return [sysconfig.get_platform().replace("-", "_").replace(".", "_")]
    machine, _, rest = target.partition("-")
    if rest == "unknown-linux-musl":
        # A static program runs with any C library.
        return [f"manylinux_2_17_{machine}", f"musllinux_1_1_{machine}"]
    sys.exit(f"no wheel for {target}: only static programs, *-unknown-linux-musl, run on every Linux")


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    program, directory = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    tags = platforms(sys.argv[3] if len(sys.argv) == 4 else None)
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = said.split()[1]
    base, info = f"remex_cli-{version}", f"remex_cli-{version}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: remex\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    metadata = METADATA.format(version=version, readme=(ROOT / "README.md").read_text())
    members = {
        f"{base}.data/scripts/remex": (program.read_bytes(), 0o755),
        f"{info}/METADATA": (metadata.encode(), 0o644),
        f"{info}/WHEEL": (wheel.encode(), 0o644),
        f"{info}/licenses/LICENSE-MIT": ((ROOT / "LICENSE-MIT").read_bytes(), 0o644),
        f"{info}/licenses/LICENSE-APACHE": ((ROOT / "LICENSE-APACHE").read_bytes(), 0o644),
    }
    record = ""
    for name, (content, _) in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    record += f"{info}/RECORD,,\n"
    members[f"{info}/RECORD"] = (record.encode(), 0o644)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base}-py3-none-{'.'.join(tags)}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (content, mode) in members.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(path)


main()
