"""Tables for people: what a store or bundle holds, how starts went, and how two bundles differ."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from xla_cache.bundle import MANIFEST, Bundle
from xla_cache.errors import CorruptError
from xla_cache.key import Key
from xla_cache.record import Record
from xla_cache.starts import StartRecord, read_starts
from xla_cache.store import Store


def open_place(path: Path, *, public_key: Path | None = None) -> Store | Bundle:
    """A bundle where there is a manifest or a file, else a store.

    Raises:
        CacheError: it is neither, cannot be trusted or is damaged.
    """
    if path.is_file() or (path / MANIFEST).exists():
        return Bundle.open(path, public_key=public_key)
    if not (path / "records").is_dir():
        raise CorruptError(
            f"{path} is no store of compiled programs and no bundle: it has no records and no {MANIFEST}"
        )
    return Store.open(path)


def show(place: Store | Bundle) -> Iterator[str]:
    """Lines on everything in it."""
    if isinstance(place, Bundle):
        yield f"bundle {place.path}, built {_when(place.manifest.created)}"
        yield from _fields(place.manifest.description)
        yield from _fields({part: value for part, value in place.manifest.context.items() if part.startswith(SHOWN)})
        yield from _records(place.manifest.records)
        return
    records = list(place.records())
    yield f"store {place.path}: {_total(records)}"
    for start in read_starts(place):
        yield from show_start(start)
    yield ""
    yield from _records(records)


SHOWN = ("versions.", "target.", "flags.")


def show_start(start: StartRecord) -> Iterator[str]:
    """How one start went: per program hit or miss, seconds, and what was new."""
    yield ""
    yield f"start {start.id} of {start.description.get('model')}, {_when(start.time)}"
    rows = [
        (
            report.name,
            "hit" if report.origin != "compiler" else "miss",
            report.origin,
            *(f"{seconds:.2f}" for seconds in (report.trace_s, report.lower_s, report.compile_s, report.load_s)),
            report.missed or "",
        )
        for report in start.programs
    ]
    yield from _table(("program", "", "from", "trace s", "lower s", "compile s", "load s", "what was new"), rows)


def verify(place: Store | Bundle) -> list[str]:
    """Read everything; what is wrong, one line each."""
    problems = []
    records: Iterable[Record] = place.records()
    if isinstance(place, Store):
        found = []
        for path in place.record_paths():
            try:
                record = place.read_record(path)
            except CorruptError as error:
                problems.append(str(error))
            else:
                found += [record] if record is not None else []
        records = found
    for record in records:
        try:
            place.packed(record)
        except CorruptError as error:
            problems.append(str(error))
    return problems


def diff(a: Store | Bundle, b: Store | Bundle) -> Iterator[str]:
    """What differs from `a` to `b`; nothing when they hold the same programs for the same things."""
    if isinstance(a, Bundle) and isinstance(b, Bundle):
        for difference in Key(a.manifest.context).differences(Key(b.manifest.context)):
            yield f"{difference.part}: {difference.wanted} -> {difference.found}"
    ours, theirs = _by_name(a), _by_name(b)
    for name in sorted({*ours, *theirs}):
        if name not in theirs:
            yield f"- {name}"
        elif name not in ours:
            yield f"+ {name}"
        elif {record.hlo for record in ours[name]} != {record.hlo for record in theirs[name]}:
            yield f"! {name}: other HLO"
        elif {record.file for record in ours[name]} != {record.file for record in theirs[name]}:
            yield f"~ {name}: equal HLO, other executable"


def _by_name(place: Store | Bundle) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in place.records():
        found.setdefault(record.program, []).append(record)
    return found


def _records(records: Sequence[Record]) -> Iterator[str]:
    rows = [
        (
            record.program,
            f"{record.packed / 1e6:.2f}",
            f"{record.size / 1e6:.2f}",
            f"{record.memory.temp / 1e6:.1f}",
            f"{record.memory.code / 1e6:.1f}",
            *(f"{s:.2f}" for s in (record.seconds.trace, record.seconds.lower, record.seconds.compile)),
            record.hlo[:12],
        )
        for record in records
    ]
    heads = ("program", "packed MB", "MB", "temp MB", "code MB", "trace s", "lower s", "compile s", "HLO")
    yield from _table(heads, rows)
    yield _total(records)


def _total(records: Sequence[Record]) -> str:
    objects = {record.file: record.packed for record in records}
    return f"{len(records)} programs, {len(objects)} executables, {sum(objects.values()) / 1e6:.1f} MB"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        # words to the left, numbers to the right
        cells = [
            text.rjust(width) if head.endswith((" s", "MB")) else text.ljust(width)
            for head, text, width in zip(heads, row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _fields(values: Any) -> Iterator[str]:
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        text = (
            value if isinstance(value, str) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        )
        yield f"  {name:<{width}}  {text}"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
