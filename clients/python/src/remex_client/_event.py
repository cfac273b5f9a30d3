"""The events of a process, and how they are decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ._codec import bytes_of
from ._exit import DeniedHost, Exit, Usage

#: Where output comes from; `pty` is all output of a terminal.
Stream = Literal["stdout", "stderr", "pty", "unknown"]

_STREAMS: dict[str, Stream] = {"stdout": "stdout", "stderr": "stderr", "pty": "pty"}
_CAUSES = {"exit", "signal", "timeout", "idleTimeout", "terminated", "outOfMemory", "serverLost"}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output; characters and lines may be split."""

    seq: int
    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """The process itself has exited; background processes may still print."""

    seq: int
    exit: Exit


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that this client will never get. `bytes` is None if the server no longer knows."""

    from_seq: int
    to_seq: int
    bytes: int | None
    cause: str | None = None

    @property
    def seq(self) -> int:
        """The last event of the gap."""
        return self.to_seq


@dataclass(frozen=True, slots=True)
class Closed:
    """All output has ended: the last event. `produced` counts bytes by stream, if the server said so."""

    seq: int
    produced: Mapping[str, int] | None = None
    evicted_bytes: int | None = None


#: Something that happened to a process.
Event = Chunk | Exited | Gap | Closed


def number(params: Mapping[str, Any], name: str) -> int:
    """Returns a member that must be a number, 0 or more."""
    value = number_or_none(params.get(name))
    if value is None:
        raise ValueError(f"`{name}` must be a whole number")
    return value


def number_or_none(value: object) -> int | None:
    """Returns a number, 0 or more; None for anything else."""
    # `True` is an `int` as well.
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def optional_number(params: Mapping[str, Any], name: str) -> int | None:
    """Returns a member that may be absent."""
    return None if params.get(name) is None else number(params, name)


def optional_text(params: Mapping[str, Any], name: str) -> str | None:
    """Returns a member that may be absent."""
    value = params.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"`{name}` must be a string")


def stream_of(word: object) -> Stream:
    """Decodes the name of a stream; one that this client does not know is `unknown`."""
    if not isinstance(word, str):
        raise ValueError("`stream` must be a string")
    return _STREAMS.get(word, "unknown")


def decode_chunk(params: Mapping[str, Any]) -> Chunk:
    """Decodes `process/output`, and a chunk of `process/read`."""
    return Chunk(number(params, "seq"), stream_of(params.get("stream")), bytes_of(params.get("chunk")))


def decode_exit(params: Mapping[str, Any]) -> Exit:
    """Decodes `process/exited`, and the state in `process/read`."""
    code = params.get("exitCode")
    if isinstance(code, bool) or not isinstance(code, int):
        raise ValueError("`exitCode` must be a whole number")
    cause = optional_text(params, "cause")
    usage = params.get("usage")
    denied = params.get("networkDenied") or ()
    return Exit(
        exit_code=code,
        signal=optional_text(params, "signal"),
        cause=cause if cause is None or cause in _CAUSES else "unknown",
        usage=None if usage is None else _usage(usage),
        sandbox_denied=bool(params.get("sandboxDenied")),
        network_denied=tuple(DeniedHost(d["host"], number(d, "port"), number(d, "count")) for d in denied),
    )


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        user=number(usage, "userMs") / 1000,
        system=number(usage, "systemMs") / 1000,
        wall=number(usage, "wallMs") / 1000,
        max_rss=optional_number(usage, "maxRssBytes"),
    )


def decode_closed(seq: int, params: Mapping[str, Any]) -> Closed:
    """Decodes `process/closed`, and the state in `process/read`."""
    produced = params.get("produced")
    if produced is not None:
        produced = {stream: number(produced, stream) for stream in ("stdout", "stderr", "pty") if stream in produced}
    return Closed(seq, produced, optional_number(params, "evictedBytes"))


def decode_gap(params: Mapping[str, Any]) -> Gap:
    """Decodes `process/gap`, and the gap in `process/read`."""
    return Gap(
        number(params, "fromSeq"),
        number(params, "toSeq"),
        optional_number(params, "bytes"),
        optional_text(params, "cause"),
    )
