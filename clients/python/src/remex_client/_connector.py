"""Connections with a handshake: a session is made or resumed. Start at `Connector`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ._call import encode
from ._deadline import limited
from ._errors import (
    ProtocolError,
    RefusedError,
    RemexError,
    TimedOutError,
    UnreachableError,
    UsageError,
    decoding,
    is_kind,
)
from ._event import optional_number, optional_text
from ._link import Handler, Link
from ._options import Options, Resume, SessionMode
from ._target import Connection, Program, Target, dial

#: The id of the `initialize` request.
HANDSHAKE = 0

_BINARY_FRAMES = "binaryFrames"

#: The version that a server of the oldest dialect returns in place of a session.
_OLDEST = "exec-server.v0"


class Connector:
    """Makes connections, one at a time, and attaches the handler of their messages."""

    def __init__(self, target: Target, options: Options, handler: Handler) -> None:
        self.target = target
        self.options = options
        self._handler = handler
        #: The link that messages are received from, also during the handshake.
        self.link: Link | None = None
        self._handshake: asyncio.Future[Mapping[str, Any]] | None = None

    def on_answer(self, call_id: object, result: Any, error: RemexError | None) -> bool:
        """Completes the handshake if this is its answer; returns whether it is."""
        if self._handshake is None or isinstance(call_id, bool) or call_id not in (HANDSHAKE, -1):
            return False
        if not self._handshake.done():
            if error is not None:
                self._handshake.set_exception(error)
                return True
            try:
                welcome = _checked_welcome(result)
                # The next message may be binary, and may have arrived already.
                if self.link is not None:
                    self.link.is_binary = _BINARY_FRAMES in _enabled(welcome)
                self._handshake.set_result(welcome)
            except ProtocolError as invalid:
                self._handshake.set_exception(invalid)
        return True

    def on_protocol_error(self, what: str) -> None:
        """Fails the handshake, if there is one."""
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(ProtocolError(what))

    async def connect_first(self) -> tuple[Connection, Mapping[str, Any]]:
        session = self.options.session
        if session is None:
            return await self.connect("new", None)
        if isinstance(session, Resume):
            mode: SessionMode = "takeOver" if session.takeover else "resume"
            return await self._resumed(mode, session.id)
        # Another client may create or end the session between two attempts, so `resume` may be needed twice.
        try:
            return await self._resumed("resume", session)
        except RefusedError as error:
            if not is_kind(error, "unknownSession"):
                raise
        try:
            return await self.connect("new", session)
        except RefusedError as error:
            if not is_kind(error, "sessionNameTaken"):
                raise
        return await self._resumed("resume", session)

    async def _resumed(self, mode: SessionMode, session: str) -> tuple[Connection, Mapping[str, Any]]:
        connection, welcome = await self.connect(mode, session)
        if not welcome.get("sessionId"):
            await connection.end()
            message = f"cannot resume session `{session}`: a server of the oldest dialect has no sessions"
            raise UsageError(message, "start a new session without a name, or use `remex serve` there")
        return connection, welcome

    async def connect(self, mode: SessionMode, session: str | None) -> tuple[Connection, Mapping[str, Any]]:
        """Connects and performs the handshake, each with its own timeout."""
        options = self.options
        late = f"connecting to {self.target} timed out after"
        connection = await limited(dial(self.target), options.connect_timeout, late)
        link = connection.link
        capabilities = ["processGap", "cancel", "consumed", _BINARY_FRAMES]
        if not link.is_websocket:
            # On a WebSocket, pings do this.
            capabilities.append("acks")
        params: dict[str, Any] = {
            "clientName": options.client_name,
            "resumeSessionId": None if mode == "new" else session,
            "capabilities": capabilities,
        }
        if mode == "takeOver":
            params["takeover"] = True
        if mode == "new" and session is not None:
            params["sessionName"] = session
        if options.detach_ttl is not None:
            params["detachTtlMs"] = round(options.detach_ttl * 1000)
        handshake = self._handshake = asyncio.get_running_loop().create_future()
        try:
            self.link = link
            link.attach(self._handler)
            link.send(encode({"id": HANDSHAKE, "method": "initialize", "params": params}))
            both: list[asyncio.Future[Any]] = [handshake, link.closed]
            await asyncio.wait(both, timeout=options.handshake_timeout, return_when=asyncio.FIRST_COMPLETED)
            if handshake.done():
                welcome = handshake.result()
                link.send(b'{"method":"initialized"}')
                # Notifications are written first, and must not overtake it.
                link.flush()
                return connection, welcome
            if link.closed.done():
                reason = await connection.failure(link.closed.result())
                raise UnreachableError(f"cannot connect to {self.target}: {reason}")
            raise TimedOutError(f"the handshake with {self.target} timed out after {options.handshake_timeout:g} s")
        except BaseException as error:
            if isinstance(error, ProtocolError) and isinstance(self.target, Program):
                error.hint = "the program printed something that is not the protocol, such as a greeting of a shell"
            link.abort("the handshake failed")
            await connection.end()
            raise
        finally:
            self._handshake = None


def _enabled(welcome: Mapping[str, Any]) -> Any:
    return (welcome.get("capabilities") or {}).get("enabled") or []


def _checked_welcome(welcome: Any) -> Mapping[str, Any]:
    """Returns the answer to `initialize`; raises `ProtocolError` if a member that is used here has a wrong type."""
    with decoding("initialize"):
        # The oldest dialect has no sessions, and says so by its version only.
        is_oldest = welcome.get("sessionId") is None and welcome.get("protocolVersion") == _OLDEST
        if not is_oldest and not isinstance(welcome["sessionId"], str):
            raise ValueError("it has no session id")
        enabled = _enabled(welcome)
        if not isinstance(enabled, list) or not all(isinstance(name, str) for name in enabled):
            raise ValueError("`enabled` must be a list of strings")
        for limit in ("messageBytes", "retainBytes"):
            optional_number(welcome.get("limits") or {}, limit)
        info = welcome.get("environmentInfo") or {}
        if not isinstance(info, dict):
            raise ValueError("`environmentInfo` must be an object")
        optional_text(info, "cwd")
        optional_text(info, "userHomeDir")
        checked: Mapping[str, Any] = welcome
        return checked
