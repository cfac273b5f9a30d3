"""The digest of a public key, by which a server is recognized. Start at `parse_pin` and `pin_of`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from ._errors import UsageError

_HEX = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")


def parse_pin(text: str) -> bytes:
    """Returns the digest in a pin: `sha256:` and 64 hexadecimal digits, or as in `curl --pinnedpubkey`."""
    if (found := _HEX.fullmatch(text)) is not None:
        return bytes.fromhex(found[1])
    if text.startswith("sha256//"):
        try:
            digest = base64.b64decode(text[8:], validate=True)
        except binascii.Error:
            digest = b""
        if len(digest) == 32:
            return digest
    raise UsageError(
        f"cannot use the pin `{text}`: it is not the SHA-256 digest of a public key",
        "write `sha256:` and 64 hexadecimal digits",
    )


def pin_of(certificate: bytes) -> bytes:
    """Returns the SHA-256 digest of the public key of a certificate in DER form; raises `ValueError` if it is none."""
    _, start, end = _element(certificate, 0)
    _, at, _ = _element(certificate, start)
    if certificate[at] == 0xA0:
        # The version is optional.
        at = _element(certificate, at)[2]
    for _ in ("serial number", "signature", "issuer", "validity", "subject"):
        at = _element(certificate, at)[2]
    after = _element(certificate, at)[2]
    if after > end:
        raise ValueError("a certificate is cut off")
    return hashlib.sha256(certificate[at:after]).digest()


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Returns the tag of an element of DER, and where its content begins and ends."""
    if at + 2 > len(data):
        raise ValueError("a certificate is cut off")
    tag, length, start = data[at], data[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(data[start : start + size], "big"), start + size
    if start + length > len(data):
        raise ValueError("a certificate is cut off")
    return tag, start, start + length
