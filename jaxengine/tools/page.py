"""A report as one HTML file: headings, charts, and the numbers behind them as tables. It loads nothing and runs no script."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from jaxengine.tools.charts import COLOURS, Bars, Chart, Lines, number_text

STYLE = """
:root { color-scheme: light dark; --text: #1c2126; --soft: #5b6570; --back: #fff; --rule: #dde2e7; --mark: #b3261e;
  --c0: #2f6fbb; --c1: #d9822b; --c2: #2e8b57; --c3: #8e5bb5; --c4: #c0504d; --c5: #4b9db5; --c6: #8a7a3d; --c7: #7a858f;
  --c8: #c77aa3; --c9: #4a5fa8; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --soft: #9aa5b0; --back: #14181c; --rule: #2c343c; --mark: #ff8a80;
  --c0: #6aa5e8; --c1: #efa65c; --c2: #62bd8b; --c3: #b991dc; --c4: #e58a87; --c5: #7fc6da; --c6: #c2b070; --c7: #a7b1ba;
  --c8: #e3a3c4; --c9: #8b9ce0; } }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
.note { color: var(--soft); font-size: .9rem; }
figure { margin: 1rem 0; } svg { width: 100%; max-width: 46rem; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--soft); } .label { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--rule); } .line { fill: none; stroke-width: 2; } .mark { stroke: var(--mark); stroke-width: 2.5; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0; margin: 0; font-size: .85rem; }
.legend span { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 600; }
""" + "".join(
    f"rect.s{number}, circle.s{number} {{ fill: var(--c{number}); }} path.s{number} {{ stroke: var(--c{number}); }} "
    f"span.s{number} {{ background: var(--c{number}); }}\n"
    for number in range(COLOURS)
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Table:
    """Rows that have the same names for their values. `down`: each row is a column, for those with many values."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    down: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of its own, `text` being what to look for."""

    title: str
    text: str
    parts: Sequence[Chart | Table]


@dataclass(frozen=True)
class Page:
    """A report. `text` says in a sentence what was done, `facts` what it was done with."""

    title: str
    text: str
    sections: Sequence[Section]
    facts: Mapping[str, Any]

    def html(self) -> str:
        """The whole file."""
        return "\n".join(self._lines()) + "\n"

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}.part")
        beside.write_text(self.html(), encoding="utf-8")
        beside.replace(path)

    def _lines(self) -> Iterator[str]:
        yield from (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(self.title)}</h1>",
            f"<p>{escape(self.text)}</p>",
        )
        for section in self.sections:
            yield f"<h2>{escape(section.title)}</h2>"
            if section.text:
                yield f"<p>{escape(section.text)}</p>"
            for part in section.parts:
                yield _figure(part) if isinstance(part, (Lines, Bars)) else _table(part)
        yield "<h2>Conditions</h2>"
        yield _table(Table("", [{"": name, "value": value} for name, value in _flat(self.facts)]))
        yield "</body></html>"


def _figure(chart: Chart) -> str:
    return f"<figure><figcaption><h3>{escape(chart.title)}</h3></figcaption>{chart.svg()}</figure>"


def _table(table: Table) -> str:
    names = list(dict.fromkeys(name for row in table.rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in table.rows]
    head = names
    if table.down:
        head, *cells = [[name, *(line[place] for line in cells)] for place, name in enumerate(names)]
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in cells)
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    titles = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f'{title}<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else number_text(value)


def _flat(facts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Facts of facts under one name each; what is not there is left out."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name} ")
        elif value not in (None, "", [], ()):
            yield f"{before}{name}", _cell(value) if isinstance(value, (int, float)) else str(value)
