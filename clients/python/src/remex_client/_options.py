"""What a connection is asked for, and its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._codec import check_seconds
from ._errors import SessionLostError

SessionMode = Literal["new", "resume", "takeOver", "resumeOrNew"]


@dataclass(frozen=True)
class Options:
    """What a caller of `connect` may set; times are in seconds."""

    client_name: str = "remex-python"
    session_mode: SessionMode = "new"
    session: str | None = None
    detach_ttl: float | None = None
    connect_timeout: float = 10.0
    connect_retry: float = 0.0
    initialize_timeout: float = 10.0
    request_timeout: float | None = None
    reconnect_timeout: float = 60.0
    keep_alive_interval: float = 15.0
    keep_alive_timeout: float = 10.0

    def __post_init__(self) -> None:
        for name in ("detach_ttl", "connect_retry", "reconnect_timeout"):
            check_seconds(getattr(self, name), name)
        for name in (
            "connect_timeout",
            "initialize_timeout",
            "request_timeout",
            "keep_alive_interval",
            "keep_alive_timeout",
        ):
            check_seconds(getattr(self, name), name, is_positive=True)


@dataclass(frozen=True)
class ConnectionState:
    """Whether a client is connected: `connected`, `reconnecting` since a `time.monotonic()`, or `lost`."""

    state: Literal["connected", "reconnecting", "lost"]
    since: float
    lost: SessionLostError | None = None
