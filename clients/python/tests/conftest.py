from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from harness import Server, remex

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
