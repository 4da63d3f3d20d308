"""Charts as inline SVG: lines over numbers, and stacked bars. Colours are the page's CSS variables, `--c0` to `--c9`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 680, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 44
COLOURS = 10
BAR, GAP = 18, 10
LABEL_CHARACTERS = 30
CHARACTER = 7.0
"""Pixels that a character of a label takes at the most."""


@dataclass(frozen=True)
class Lines:
    """One line for each of `series`, through points `(x, y)` with finite values. `steps` draws stairs, as shares are."""

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    steps: bool = False

    def svg(self) -> str:
        """The chart."""
        points = [point for line in self.series.values() for point in line]
        across = _Scale.over([x for x, _ in points], LEFT, WIDTH - RIGHT, zero=False)
        up = _Scale.over([y for _, y in points], HEIGHT - BOTTOM, TOP, zero=True)
        parts = [*_grid(across, up, self.x, self.y)]
        for number, (name, line) in enumerate(self.series.items()):
            places = [(across.at(x), up.at(y)) for x, y in sorted(line)]
            parts.append(f'<path class="line s{number % COLOURS}" d="{_path(places, steps=self.steps)}"/>')
            if not self.steps:
                for (x, y), (left, top) in zip(sorted(line), places, strict=True):
                    told = escape(f"{name}: {number_text(y)} at {number_text(x)}")
                    dot = f'<circle class="s{number % COLOURS}" cx="{left:.1f}" cy="{top:.1f}" r="3.5">'
                    parts.append(f"{dot}<title>{told}</title></circle>")
        return _svg(self.title, HEIGHT, parts) + _legend(self.series)


@dataclass(frozen=True)
class Bars:
    """A bar a row, `label: {part: value}`, its parts end to end. `marks` of rows are strokes across, and `mark` says of what."""

    title: str
    unit: str
    rows: Mapping[str, Mapping[str, float]]
    marks: Mapping[str, float] = field(default_factory=dict)
    mark: str = "limit"

    def svg(self) -> str:
        """The chart."""
        labels = {
            name: name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}…" for name in self.rows
        }
        left = 12 + CHARACTER * max(map(len, labels.values()), default=0)
        longest = [sum(parts.values()) for parts in self.rows.values()]
        across = _Scale.over([*longest, *self.marks.values()], left, WIDTH - RIGHT - 48, zero=True)
        height = TOP + (BAR + GAP) * len(self.rows) + BOTTOM
        colours = {
            part: number
            for number, part in enumerate(dict.fromkeys(part for row in self.rows.values() for part in row))
        }
        drawn = [*_across(across, height, self.unit)]
        for number, (name, parts) in enumerate(self.rows.items()):
            top = TOP + number * (BAR + GAP)
            drawn.append(_text(left - 6, top + 13, labels[name], "label", name))
            drawn += self._row(parts, top, across, colours)
            if name in self.marks:
                place = across.at(self.marks[name])
                told = escape(f"{self.mark}: {number_text(self.marks[name])} {self.unit}")
                drawn.append(
                    f'<path class="mark" d="M{place:.1f} {top - 4}V{top + BAR + 4}"><title>{told}</title></path>'
                )
        legend = _legend(colours) if len(colours) > 1 else ""
        noted = f'<p class="note">The stroke across a bar: {escape(self.mark)}.</p>' if self.marks else ""
        return _svg(self.title, height, drawn) + legend + noted

    def _row(self, parts: Mapping[str, float], top: float, across: _Scale, colours: Mapping[str, int]) -> Iterator[str]:
        begun = 0.0
        for part, value in parts.items():
            left, right = across.at(begun), across.at(begun + value)
            told = escape(f"{part}: {number_text(value)} {self.unit}")
            yield (
                f'<rect class="s{colours[part] % COLOURS}" x="{left:.1f}" y="{top}" width="{max(0.0, right - left):.1f}" '
                f'height="{BAR}"><title>{told}</title></rect>'
            )
            begun += value
        yield _text(across.at(begun) + 5, top + 13, number_text(begun))


Chart = Lines | Bars


def shares(title: str, x: str, series: Mapping[str, Sequence[float]]) -> Lines:
    """What share of values is at most so large: a line from 0 to 100 % for each of `series`, which are not empty."""
    lines = {}
    for name, values in series.items():
        ordered, count = sorted(values), len(values)
        kept = range(0, count, max(1, count // 200))
        lines[name] = [(ordered[0], 0.0), *((ordered[at], 100 * (at + 1) / count) for at in kept), (ordered[-1], 100.0)]
    return Lines(title, x, "% of them take at most so long", lines, steps=True)


def number_text(value: float) -> str:
    """A number with three digits that count, and separated thousands."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class _Scale:
    """From values `low` to `high` to places `begin` to `end`, in pixels."""

    low: float
    high: float
    begin: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float, *, zero: bool) -> _Scale:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        low = min(0.0, low) if zero else low
        if high <= low:
            low, high = min(low, 0.0), max(high, low + 1.0)
        step = _step((high - low) / 5)
        first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
        ticks = tuple(step * number for number in range(first, last + 1))
        return cls(ticks[0], ticks[-1], begin, end, ticks)

    def at(self, value: float) -> float:
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)


def _step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _path(places: Sequence[tuple[float, float]], *, steps: bool) -> str:
    drawn = []
    for number, (left, top) in enumerate(places):
        drawn.append(
            f"M{left:.1f} {top:.1f}" if not number else f"H{left:.1f}V{top:.1f}" if steps else f"L{left:.1f} {top:.1f}"
        )
    return "".join(drawn)


def _grid(across: _Scale, up: _Scale, x: str, y: str) -> Iterator[str]:
    for tick in up.ticks:
        place = up.at(tick)
        yield f'<path class="grid" d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}"/>'
        yield _text(LEFT - 6, place + 4, number_text(tick), "label")
    yield from _across(across, HEIGHT, x)
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield f'<g transform="rotate(-90 12 {middle})">{_text(12, middle, y, "middle")}</g>'


def _across(across: _Scale, height: float, unit: str) -> Iterator[str]:
    bottom = height - BOTTOM
    for tick in across.ticks:
        place = across.at(tick)
        yield f'<path class="grid" d="M{place:.1f} {TOP}V{bottom}"/>'
        yield _text(place, bottom + 16, number_text(tick), "middle")
    yield _text((across.begin + across.end) / 2, height - 8, unit, "middle")


def _text(x: float, y: float, text: str, place: str = "", told: str = "") -> str:
    title = f"<title>{escape(told)}</title>" if told else ""
    return f'<text class="{place}" x="{x:.1f}" y="{y:.1f}">{escape(text)}{title}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    return f"{head}{''.join(parts)}</svg>"


def _legend(names: Mapping[str, object]) -> str:
    items = "".join(
        f'<li><span class="s{number % COLOURS}"></span>{escape(name)}</li>' for number, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'
