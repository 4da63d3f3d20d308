"""Draws the pictures of `buckets.md` with the planner's own shapes: `python -m examples.pictures`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from buckets import planners
from buckets.grid import Grid

PICTURES = Path(__file__).parent / "pictures"
LIMITS = planners.Limits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=2048, page_size=32)
DECODING = 5
PROMPTS = [120, 70, 40]
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44")
EMPTY = "#e4e4e4"
CELL = 14


def svg(width: int, height: int, parts: Iterator[str]) -> str:
    """A picture of these parts."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12">', *parts, "</svg>", ""])


def text(x: float, y: float, words: str, colour: str = "#333") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}">{words}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}" rx="2"/>'


def ladder(grid: Grid) -> str:
    """Every shape of the grid: a bar as long as its places, marked with the rows that may share them."""
    shapes = sorted(grid.buckets, key=lambda bucket: (bucket.tokens, bucket.batch))
    unit = 480 / shapes[-1].tokens

    def parts() -> Iterator[str]:
        yield text(
            8, 18, f"{len(shapes)} shapes for at most {LIMITS.max_num_seqs} sequences and a budget of 512 tokens a step"
        )
        for line, bucket in enumerate(shapes):
            y = 32 + 22 * line
            yield text(8, y + 13, str(bucket))
            yield box(70, y, max(2, bucket.tokens * unit), 16, COLOURS[0])
            yield text(76 + bucket.tokens * unit, y + 13, f"{bucket.tokens} places, up to {bucket.batch} rows")

    return svg(720, 40 + 22 * len(shapes), parts())


def step(grid: Grid) -> str:
    """The places of one step: rows of any length, one after the other, and what is left of the shape."""
    fill = grid.fill(DECODING, DECODING, PROMPTS, max_tokens=LIMITS.max_num_batched_tokens)
    counts = [DECODING, *fill.takes]
    owners = [row for row, count in enumerate(counts) for _ in range(count)]
    owners += [-1] * (fill.bucket.tokens - len(owners))
    columns = 32

    def parts() -> Iterator[str]:
        yield text(8, 18, f"bucket {fill.bucket}: {fill.bucket.tokens} places, one launch. A square is a token.")
        for place, owner in enumerate(owners):
            x, y = 8 + CELL * (place % columns), 30 + CELL * (place // columns)
            yield box(x, y, CELL - 1, CELL - 1, EMPTY if owner < 0 else COLOURS[owner])
        legend = [f"{DECODING} sequences decode: a token each"]
        legend += [f"{take} of a prompt's {prompt} tokens" for prompt, take in zip(PROMPTS, fill.takes, strict=False)]
        legend.append(f"padding: {owners.count(-1)} places")
        for line, (row, words) in enumerate(zip([*range(len(counts)), -1], legend, strict=True)):
            yield box(480, 34 + 22 * line, CELL - 1, CELL - 1, EMPTY if row < 0 else COLOURS[row])
            yield text(500, 45 + 22 * line, words)

    return svg(720, 40 + CELL * (len(owners) // columns), parts())


def pictures() -> dict[str, str]:
    """The text of each picture by its name."""
    grid = planners.plan("tokens", LIMITS)
    return {"ladder.svg": ladder(grid), "step.svg": step(grid)}


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name, drawn in pictures().items():
        (PICTURES / name).write_text(drawn)
        print(PICTURES / name)
