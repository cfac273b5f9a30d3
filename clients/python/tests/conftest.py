from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from http.server import ThreadingHTTPServer

import pytest
import pytest_asyncio
from harness import Server, Web, remex

import remex_client


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest_asyncio.fixture(params=["unix", "ws", "stdio"])
async def host(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[remex_client.Host]:
    """A host over each transport."""
    targets = {
        "unix": server.unix,
        "ws": server.websocket,
        "stdio": [remex(), "serve", "--listen", "stdio"],
    }
    async with remex_client.connect(targets[request.param]) as host:
        yield host


@pytest.fixture(scope="session")
def web() -> Iterator[str]:
    """The URL of a web server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
