"""Models are tested by their values: their programs are compiled quickly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.quick import quick_programs


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick_programs():
        yield
