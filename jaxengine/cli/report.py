"""`jaxengine report`: how this machine's devices do, as a file to send."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_commands(commands: Any) -> None:
    """Declare the command."""
    from jaxengine.bench.report.run import PARTS

    report = commands.add_parser(
        "report", help="kernels, answers and speed of this machine's devices, without paths and names, to be sent"
    )
    report.add_argument(
        "-o", "--output", default="jaxengine-report", metavar="NAME", help="writes NAME.json and NAME.html"
    )
    report.add_argument("--quick", action="store_true", help="fewer cases: minutes on a CPU of two cores")
    report.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help=f"({' '.join(PARTS)})")
    report.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    from jaxengine.bench.figures import write_json
    from jaxengine.bench.report.page import GOOD, report_page
    from jaxengine.bench.report.run import report

    found = report(namespace.parts, quick=namespace.quick, say=lambda line: print(line, file=sys.stderr, flush=True))
    path = Path(namespace.output)
    write_json(path.with_name(f"{path.name}.json"), found)
    report_page(found).write(path.with_name(f"{path.name}.html"))
    bad = [row for row in found.get("kernels") or () if row["outcome"] not in GOOD]
    print(f"{path}.json and {path}.html hold no paths, names or texts; look through them before you send them")
    if bad:
        print(f"{len(bad)} kernel cases do not agree: {path}.html says which")
    return 0
