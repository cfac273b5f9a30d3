"""Attempts to connect, with growing pauses: the first ones, and those after a disconnect. Start at `connect_first`."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Mapping
from typing import Any

from ._connector import Connector
from ._errors import (
    ProtocolError,
    RefusedError,
    RemexError,
    SessionLostError,
    TimedOutError,
    UnauthorizedError,
    UnreachableError,
    UsageError,
    is_kind,
)
from ._target import Connection

log = logging.getLogger("remex_client")

#: The first and the longest pause between attempts to reconnect.
_FIRST_BACKOFF = 0.05
_MAX_BACKOFF = 2.0

#: How long one attempt to reconnect may take; a timer cannot be infinite.
_MAX_ATTEMPT = 3600.0

_SESSION_ATTACHED = -32010

_FORGOTTEN = "the server no longer knows it, because it expired, was ended, or the server was restarted"


async def connect_first(connector: Connector) -> tuple[Connection, Mapping[str, Any]]:
    """Makes the first connection, with retries if the options ask for them."""
    began, backoff = time.monotonic(), _FIRST_BACKOFF
    while True:
        try:
            return await connector.connect_first()
        except RemexError as error:
            left = connector.options.connect_retry - (time.monotonic() - began)
            if left <= 0 or not _may_pass(error):
                raise
            log.debug("connecting failed, trying again: %s", error)
            await asyncio.sleep(min(_jittered(backoff), left))
            backoff = min(2 * backoff, _MAX_BACKOFF)


async def reconnect(
    connector: Connector, session_id: str, reason: str, backoff: float, closing: asyncio.Event
) -> tuple[Connection, Mapping[str, Any], float]:
    """Resumes a session after a disconnect; the first attempt is made after about `backoff` seconds.

    Returns the connection, the answer to its handshake, and the next backoff. Raises `SessionLostError` once the time
    is up, or if the session is gone or is closed meanwhile.
    """
    began, limit = time.monotonic(), connector.options.reconnect_timeout
    last: RemexError = UnreachableError(f"the connection to {connector.target} was lost: {reason}")
    while True:
        left = limit - (time.monotonic() - began)
        await _unless(closing, asyncio.sleep(max(0.0, min(_jittered(backoff), left / 2))))
        backoff = min(max(2 * backoff, _FIRST_BACKOFF), _MAX_BACKOFF)
        left = limit - (time.monotonic() - began)
        try:
            attempt = asyncio.wait_for(connector.connect("resume", session_id), min(max(left, 0.01), _MAX_ATTEMPT))
            connection, welcome = await _unless(closing, attempt)
        except SessionLostError:
            raise
        except RemexError as error:
            last = error
            if is_kind(error, "unknownSession"):
                raise SessionLostError("forgotten", f"{_FORGOTTEN} ({error.message})") from error
            is_attached = isinstance(error, RefusedError) and error.code == _SESSION_ATTACHED
            is_final = isinstance(error, RefusedError | UnauthorizedError | ProtocolError | UsageError)
            if is_final and not is_attached and not is_kind(error, "shuttingDown", "limitExceeded"):
                raise SessionLostError("rejected", str(error)) from error
            log.debug("reconnecting failed: %s", error)
        except asyncio.TimeoutError:
            # Cut short by the overall limit; the error of an earlier attempt says more.
            pass
        except Exception as error:
            # The function for the token failed, and may succeed later.
            last = UnreachableError(f"cannot connect to {connector.target}: {error!r}")
            last.__cause__ = error
            log.debug("reconnecting failed: %r", error)
        else:
            if welcome.get("sessionId") != session_id:
                await connection.end()
                raise SessionLostError("forgotten", f"{_FORGOTTEN} (it started another session)")
            return connection, welcome, backoff
        if time.monotonic() - began + _FIRST_BACKOFF >= limit:
            raise SessionLostError("reconnectTimedOut", f"no connection for {limit:g} s; {last}") from last


async def _unless(closing: asyncio.Event, awaitable: Awaitable[Any]) -> Any:
    """Waits for something; raises `SessionLostError` if the session is closed meanwhile."""
    work = asyncio.ensure_future(awaitable)
    closed = asyncio.create_task(closing.wait())
    try:
        await asyncio.wait([work, closed], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise SessionLostError("closed", "this program closed the connection")
        return work.result()
    finally:
        closed.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait([work])


def _may_pass(error: RemexError) -> bool:
    """Returns whether a later attempt may succeed."""
    return isinstance(error, UnreachableError | TimedOutError) or is_kind(
        error, "sessionAttached", "shuttingDown", "limitExceeded"
    )


def _jittered(pause: float) -> float:
    """Returns a random part of a pause, at least half of it, so that clients do not reconnect all at once."""
    return pause * (0.5 + random.random() / 2)
