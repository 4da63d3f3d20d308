"""One server and its neighbours for all attacks."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.robustness.loopback import Loopback, build
from tests.robustness.neighbours import Neighbours


@pytest.fixture(scope="session")
def server() -> Iterator[Loopback]:
    """A server on the embedded model, without a key."""
    engine = build()
    server = Loopback(engine)
    yield server
    server.close()
    engine.close()


@pytest.fixture(scope="module")
def neighbours(server: Loopback) -> Iterator[Neighbours]:
    """Well-behaved clients of `server`, busy throughout."""
    neighbours = Neighbours(server)
    yield neighbours
    neighbours.close()


@pytest.fixture
def client(server: Loopback, neighbours: Neighbours) -> Iterator[httpx.Client]:
    """An attacker's client. After the attack the engine goes on and nobody else has noticed."""
    with server.client(headers={"Content-Type": "application/json"}) as client:
        yield client
    neighbours.check()
