"""The options of a connection, and its state."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Literal

from ._codec import check_seconds
from ._errors import SessionLostError, UsageError

SessionMode = Literal["new", "resume", "takeOver"]


class Unset(enum.Enum):
    """The type of `UNSET`, for parameters for which None would be a mistake."""

    UNSET = "unset"


#: The default of such a parameter.
UNSET: Final = Unset.UNSET


@dataclass(frozen=True)
class Resume:
    """An existing session, by its id or name; with `takeover`, also one that another client holds."""

    id: str
    takeover: bool = False


#: None is a new session without a name, a name is resumed or created.
SessionChoice = str | Resume | None


@dataclass(frozen=True)
class Options:
    """What a caller of `connect` can set; times are in seconds."""

    client_name: str = "remex-python"
    session: SessionChoice = None
    detach_ttl: float | None = None
    connect_timeout: float = 10.0
    connect_retry: float = 0.0
    handshake_timeout: float = 10.0
    request_timeout: float | None = None
    reconnect_timeout: float = 60.0
    keep_alive_interval: float = 15.0
    keep_alive_timeout: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.session, str | Resume | None):
            what = f"`session` cannot be of the type `{type(self.session).__name__}`"
            raise TypeError(f"{what}: give a name, or `Resume(id)`")
        if self.session == "" or self.session == Resume(""):
            raise UsageError("cannot use an empty text as the name of a session", "give a name, or leave it out")
        for name in ("detach_ttl", "connect_retry", "reconnect_timeout"):
            check_seconds(getattr(self, name), name)
        for name in (
            "connect_timeout",
            "handshake_timeout",
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
