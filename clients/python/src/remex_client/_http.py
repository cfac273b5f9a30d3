"""HTTP requests from the remote host. Start at `Http`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from ._codec import bytes_of, milliseconds
from ._errors import ProtocolError, RefusedError, RemexError, decoding
from ._route import Route, RouteKey
from ._session import Session

#: After how many parts of a body its consumption is reported; the server sends up to 16 ahead.
_REPORT_INTERVAL = 4

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Response:
    """A response with its whole body."""

    status: int
    #: In the order of the response; names are in lower case, and may repeat.
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Returns the first value of a header."""
        return _find(self.headers, name)

    @property
    def text(self) -> str:
        """The body as text; invalid UTF-8 is replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Decodes the body as JSON."""
        return json.loads(self.body)


class Http:
    """Makes HTTP requests from the remote host.

    response = await host.http.get("http://127.0.0.1:8000/health")
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def get(self, url: str, *, headers: Headers = (), timeout: float | None = None) -> Response:
        """Makes a GET request, which is repeated after a disconnect."""
        return await self.request("GET", url, headers=headers, timeout=timeout)

    async def post(
        self, url: str, body: bytes = b"", *, headers: Headers = (), timeout: float | None = None
    ) -> Response:
        """Makes a POST request, which is not repeated after a disconnect."""
        return await self.request("POST", url, body=body, headers=headers, timeout=timeout)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        secret_headers: Mapping[str, tuple[str, str]] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        redirects: Literal["follow", "stop"] = "follow",
    ) -> Response:
        """Makes a request, and returns the response with its body of up to 32 MiB, whatever its status.

        `secret_headers` maps a name to a prefix and a variable of the server's environment, the value of which follows
        it: `{"authorization": ("Bearer ", "API_TOKEN")}`. GET, HEAD and OPTIONS are repeated after a disconnect.
        """
        params = self._params(method, url, headers, secret_headers, body, timeout, redirects)
        reply = await self._session.call("http/request", params, timeout=False)
        with decoding("http/request"):
            return Response(reply["status"], _headers(reply), bytes_of(reply.get("bodyBase64") or b""))

    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        secret_headers: Mapping[str, tuple[str, str]] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        redirects: Literal["follow", "stop"] = "follow",
    ) -> StreamingResponse:
        """Makes a request, and returns the response once its head has arrived; the body follows in pieces.

            async with await host.http.stream("GET", url) as response:
                async for piece in response:
                    ...

        A disconnect ends the body with `RequestInterrupted`.
        """
        session = self._session
        params = self._params(method, url, headers, secret_headers, body, timeout, redirects)
        params["streamResponse"] = True
        route = Route("http/request")
        key: RouteKey = ("http", params["requestId"])
        session.routes[key] = route
        try:
            call, answer = await session.enqueue("http/request", params)
            reply = await session.wait_for(call, answer)
            with decoding("http/request"):
                return StreamingResponse(session, params["requestId"], call.id, route, reply["status"], _headers(reply))
        except BaseException:
            session.routes.pop(key, None)
            raise

    def _params(
        self,
        method: str,
        url: str,
        headers: Headers,
        secret_headers: Mapping[str, tuple[str, str]] | None,
        body: bytes | None,
        timeout: float | None,
        redirects: str,
    ) -> dict[str, Any]:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        sent: list[dict[str, str]] = [{"name": name, "value": value} for name, value in pairs]
        for name, (prefix, variable) in (secret_headers or {}).items():
            sent.append({"name": name, "value": prefix, "valueEnvVar": variable})
        params: dict[str, Any] = {
            "method": method,
            "url": url,
            "requestId": self._session.name("http"),
            "headers": sent,
            "redirectPolicy": redirects,
        }
        if body is not None:
            params["bodyBase64"] = bytes(body)
        if timeout is not None:
            params["timeoutMs"] = milliseconds(timeout, "timeout", is_positive=True)
        return params


class StreamingResponse:
    """A response with its body still to come: iterate over the pieces, or `read` all of it.

    If the body does not arrive completely, the iteration raises `RefusedError` (`httpFailed`), `ProtocolError` or
    `RequestInterrupted` behind what has arrived.
    """

    def __init__(
        self,
        session: Session,
        request_id: str,
        call_id: int,
        route: Route,
        status: int,
        headers: tuple[tuple[str, str], ...],
    ) -> None:
        self._session = session
        self._request_id = request_id
        self._call_id = call_id
        self._route = route
        self._seq = 0
        self._has_ended = False
        self._failure: RemexError | None = None
        self.status = status
        #: In the order of the response; names are in lower case, and may repeat.
        self.headers = headers

    def header(self, name: str) -> str | None:
        """Returns the first value of a header."""
        return _find(self.headers, name)

    def __aiter__(self) -> StreamingResponse:
        return self

    async def __anext__(self) -> bytes:
        while not self._has_ended:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            part = await self._route.next()
            seq = part["seq"]
            if seq != self._seq + 1:
                self._failure = ProtocolError(f"part {seq} of a body followed part {self._seq}")
                continue
            self._seq = seq
            if part.get("error") is not None:
                message = f"failed to read http/request response body: {part['error']}"
                self._failure = RefusedError(-32603, "httpFailed", message)
                self._session.routes.pop(("http", self._request_id), None)
            elif part.get("done"):
                self._has_ended = True
                self._session.routes.pop(("http", self._request_id), None)
            elif seq % _REPORT_INTERVAL == 0:
                self._session.report_body_consumed(self._request_id, seq)
            data: bytes = part["data"]
            if data:
                return data
        raise StopAsyncIteration

    async def read(self) -> bytes:
        """Returns the rest of the body."""
        return b"".join([piece async for piece in self])

    async def close(self) -> None:
        """Ends the request unless all of its body has arrived."""
        if self._session.routes.pop(("http", self._request_id), None) is not None:
            self._session.cancel(self._call_id)

    async def __aenter__(self) -> StreamingResponse:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _headers(reply: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((header["name"], header["value"]) for header in reply.get("headers") or ())


def _find(headers: tuple[tuple[str, str], ...], name: str) -> str | None:
    return next((value for found, value in headers if found.lower() == name.lower()), None)
