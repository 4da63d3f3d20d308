"""The page of models says what the registry has."""

from __future__ import annotations

import re
from pathlib import Path

from jaxengine.device.models.registry import ARCHITECTURES
from jaxengine.front.parsers.reasoning import REASONING_FORMATS
from jaxengine.front.parsers.tools import TOOL_FORMATS
from tests.device.models.cases import CASES, FAMILIES

PAGE = Path(__file__).parents[3] / "examples" / "docs" / "models.md"
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if line[:1] == "|"]


def test_every_architecture_has_a_row():
    assert sorted(re.findall(r"`(\w+)`", " ".join(row[1] for row in ROWS))) == sorted(ARCHITECTURES)


def test_marked_are_those_that_are_compiled_for_tpus():
    marked = set(re.findall(r"`(\w+)` •", " ".join(row[1] for row in ROWS)))
    assert marked == {CASES[family][0] for family in FAMILIES}


def test_formats_are_known():
    assert set(re.findall(r"`(\w+)`", " ".join(row[3] for row in ROWS))) <= TOOL_FORMATS.keys()
    assert set(re.findall(r"`(\w+)`", " ".join(row[4] for row in ROWS))) <= REASONING_FORMATS.keys()
