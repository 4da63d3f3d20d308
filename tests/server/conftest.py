"""One server for all tests that only ask it something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.rig import Live, live


@pytest.fixture(scope="session")
def server() -> Iterator[Live]:
    """A server with default options around a fake runner."""
    with live(enable_prompt_tokens_details=True) as running:
        yield running
