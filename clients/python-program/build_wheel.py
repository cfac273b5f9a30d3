"""Makes a wheel that puts the program `remex` into the `bin` of a Python environment.

usage: build_wheel.py PROGRAM DIRECTORY [TARGET]

TARGET is a Rust target triple, such as x86_64-unknown-linux-musl; without it, the wheel is for this machine only, and
package indexes refuse it. Needs nothing but Python. The same program makes the same wheel.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import struct
import subprocess
import sys
import sysconfig
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

#: A program header that names the interpreter of a program which is not static.
_PT_INTERP = 3


def platforms(target: str | None, program: bytes) -> list[str]:
    """Returns the platforms that a program for this target runs on, as wheels name them."""
    if target is None:
        return [sysconfig.get_platform().replace("-", "_").replace(".", "_")]
    machine, _, rest = target.partition("-")
    if rest == "unknown-linux-musl":
        if not is_static(program):
            sys.exit(f"no wheel for {target}: the program is not static, so it does not run on every Linux")
        return [f"manylinux_2_17_{machine}", f"musllinux_1_1_{machine}"]
    sys.exit(f"no wheel for {target}: only static programs, *-unknown-linux-musl, run on every Linux")


def is_static(program: bytes) -> bool:
    """Returns whether a 64-bit ELF program needs no interpreter, and so no C library."""
    if program[:5] != b"\x7fELF\x02":
        return False
    (start,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    return all(struct.unpack_from("<I", program, start + at * size)[0] != _PT_INTERP for at in range(count))


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    program, directory = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    content = program.read_bytes()
    tags = platforms(sys.argv[3] if len(sys.argv) == 4 else None, content)
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = said.split()[1]
    base = f"{NAME.replace('-', '_')}-{version}"
    info = f"{base}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: remex\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    metadata = METADATA.format(name=NAME, version=version, readme=(HERE / "README.md").read_text())
    members = {
        f"{base}.data/scripts/remex": (content, 0o755),
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
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, mode) in members.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(path)


if __name__ == "__main__":
    main()
