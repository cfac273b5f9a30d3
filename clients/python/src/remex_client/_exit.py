"""How a process ended. Start at `Exit`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process used, with the children that it waited for. Times are in seconds."""

    user: float
    system: float
    wall: float
    max_rss: int | None


@dataclass(frozen=True, slots=True)
class DeniedHost:
    """A host that the sandbox refused."""

    host: str
    port: int
    count: int


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended.

    `exit_code` is the exit status, or 128 plus the number of the signal. `cause` is `exit`, `signal`, `timeout`,
    `idleTimeout`, `terminated`, `outOfMemory`, `serverLost`, `unknown` (a word of a newer server), or None if the
    server did not say.
    """

    exit_code: int
    signal: str | None = None
    cause: str | None = None
    usage: Usage | None = None
    sandbox_denied: bool = False
    network_denied: tuple[DeniedHost, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0
