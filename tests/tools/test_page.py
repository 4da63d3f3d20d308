"""Pages of reports: what is in them is shown as it is, numbers as people read them, charts where their values say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxengine.tools.charts import Bars, Lines, number_text, shares
from jaxengine.tools.page import Page, Section, Table
from tests.tools.pages import read_page


def test_a_page_shows_what_it_is_given_and_nothing_of_it_is_markup(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    chart = Bars(evil, evil, {evil: {evil: 2.0, "b": 3.0}}, {evil: 4.0}, evil)
    lines = Lines(evil, evil, evil, {evil: [(0.0, 1.0), (2.0, 3.0)]})
    table = Table(evil, [{evil: 1234, "share": 0.12345}, {evil: None, "share": evil}])
    page = Page(evil, evil, [Section(evil, evil, [chart, lines, table])], {"machine": {"cores": 2}, "nothing": None})
    page.write(tmp_path / "a" / "page.html")
    read = read_page(tmp_path / "a" / "page.html")
    assert read.headings == [evil, evil, "Conditions"]
    assert read.rows[:3] == [[evil, "share"], ["1,234", "0.123"], ["", evil]]
    assert read.row("machine cores") == ["machine cores", "2"]
    assert not [row for row in read.rows if row[0] == "nothing"]
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "page.html"], "nothing is left beside it"


def test_bars_are_as_long_as_their_values() -> None:
    svg = Bars("t", "s", {"one": {"a": 1.0, "b": 3.0}, "two": {"a": 2.0}}, {"two": 2.0}).svg()
    rects = [
        (float(x), float(width))
        for x, width in re.findall(r'<rect class="s\d" x="([\d.]+)" y="\d+" width="([\d.]+)"', svg)
    ]
    (a, a_width), (b, b_width), (c, c_width) = rects
    assert (b_width, c_width) == pytest.approx((3 * a_width, 2 * a_width), abs=0.4)
    assert (b, c) == pytest.approx((a + a_width, a), abs=0.4)
    assert float(re.search(r'class="mark" d="M([\d.]+)', svg)[1]) == pytest.approx(c + c_width, abs=0.4)


def test_shares_rise_to_all_of_them() -> None:
    (line,) = shares("t", "ms", {"a": list(range(1000))}).series.values()
    assert line[0] == (0, 0.0)
    assert line[-1] == (999, 100.0)
    assert 150 < len(line) < 250, "as many points as are seen"
    assert (500, 50.1) in line


@pytest.mark.parametrize(
    "values", [[], [(0.0, 0.0)], [(5.0, 5.0)], [(1e9, 1e-9), (2e9, 2e-9)], [(-3.0, -1.0), (3.0, 1.0)]]
)
def test_any_numbers_make_a_chart(values: list[tuple[float, float]]) -> None:
    svg = Lines("t", "x", "y", {"a": values}).svg()
    places = [float(text) for text in re.findall(r'c[xy]="([-\d.]+)"', svg)]
    assert len(places) == 2 * len(values)
    assert all(0 <= place <= 680 for place in places)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234567.0, "1,234,567"),
        (12.345, "12.3"),
        (0.5, "0.5"),
        (0.00001234, "0.000012"),
        (-2.5, "-2.5"),
        (100.0, "100"),
    ],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number_text(value) == text
