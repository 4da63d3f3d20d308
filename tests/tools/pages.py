"""Reads a page that a tool has written, and holds it to what every such page must be: one file that loads and runs nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "hr", "link", "img"}


class Read(HTMLParser):
    """The headings, tables and number of charts of a page; its tags must match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.charts = 0
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"tags that do not end: {self._open}"

    def row(self, name: str) -> list[str]:
        """The row of a table that begins with a name."""
        return next(row for row in self.rows if row and row[0] == name)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe"), "a page runs and loads nothing"
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")], attrs
        if tag not in VOID:
            self._open.append(tag)
        if tag == "svg":
            self.charts += 1
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] in (["td"], ["th"]):
            self.rows[-1][-1] += data
        elif self._open[-1:] in (["h1"], ["h2"]):
            self.headings.append(data)


def read_page(path: Path) -> Read:
    """A written page."""
    text = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|url\(|@import", re.sub(r"<td>[^<]*</td>", "", text)), "a page asks no other host"
    page = Read(text)
    for label in ("NaN", "nan", "inf<"):
        assert not re.search(rf'[ "]{label}', "".join(re.findall(r"<svg.*?</svg>", text))), (
            "a chart has places for numbers"
        )
    return page
