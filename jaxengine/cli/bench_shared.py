"""What `jaxengine bench` commands share: which requests are measured, and how figures are told."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxengine.bench.workload import DATASETS
from jaxengine.errors import ConfigError

if TYPE_CHECKING:
    from jaxengine.bench.workload import BenchRequest
    from jaxengine.tools.page import Page

NOT_TOLD = ("run", "command", "header")
"""What of a command line is in no report: a header may hold a key."""

NOT_SHOWN = ("starts", "latencies", "errors", "shapes", "buckets")
"""What is kept as JSON and stands in no table."""


def add_lengths(parser: argparse.ArgumentParser, *, input_len: int | None, output_len: int | None) -> None:
    """Declare how long requests are; None: as the options of random ones say."""
    for name, default in (("input", input_len), ("output", output_len)):
        shown = "as --random-*-len" if default is None else str(default)
        parser.add_argument(f"--{name}-len", type=int, default=default, help=f"tokens of each {name} ({shown})")


def add_html(parser: Any) -> None:
    """Declare the page."""
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots and the numbers behind them")


def rate(text: str) -> float | str:
    """Read a request rate: a number, inf, or trace."""
    return text if text == "trace" else float(text)


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Declare which requests are measured."""
    group = parser.add_argument_group("requests")
    group.add_argument("--dataset-name", choices=DATASETS, default=DATASETS[0])
    group.add_argument(
        "--dataset-path",
        metavar="FILE",
        help="a ShareGPT file; or a trace: Azure's CSV, Mooncake's JSON lines, what --record-traffic writes",
    )
    group.add_argument("--num-prompts", type=int, default=1000, help="how many requests (1000)")
    group.add_argument("--random-input-len", type=int, default=1024)
    group.add_argument("--random-output-len", type=int, default=128)
    group.add_argument(
        "--random-range-ratio", type=float, default=0.0, help="lengths within this share of the mean (0)"
    )
    group.add_argument("--random-prefix-len", type=int, default=0, help="tokens more that all prompts begin with (0)")
    group.add_argument("--sharegpt-output-len", type=int, help="tokens of each output (as long as the answers)")
    group.add_argument("--dataset-seed", type=int, default=0, help="of lengths and contents (0)")


def requests(
    namespace: argparse.Namespace, tokens: Callable[[str], int], ids: range | None = None
) -> Sequence[BenchRequest]:
    """The requests that were asked for; `tokens` counts those of a text, `ids` are those that random prompts are made of.

    Raises:
        ConfigError: a file is needed and none is given.
    """
    from jaxengine.bench import workload

    given = {} if ids is None else {"ids": ids}
    if namespace.dataset_name == "random":
        return workload.random_requests(
            namespace.num_prompts,
            getattr(namespace, "input_len", None) or namespace.random_input_len,
            getattr(namespace, "output_len", None) or namespace.random_output_len,
            range_ratio=namespace.random_range_ratio,
            prefix_len=namespace.random_prefix_len,
            seed=namespace.dataset_seed,
            **given,
        )
    if namespace.dataset_path is None:
        raise ConfigError(f"--dataset-name {namespace.dataset_name} needs --dataset-path")
    if namespace.dataset_name == "trace":
        return workload.trace_requests(namespace.dataset_path, namespace.num_prompts, **given)
    return workload.sharegpt_requests(
        Path(namespace.dataset_path),
        namespace.num_prompts,
        tokens,
        output_len=namespace.sharegpt_output_len,
        seed=namespace.dataset_seed,
    )


def counter(name: str) -> Callable[[str], int]:
    """Counts tokens with the tokenizer of that name, which is read when the first text is counted."""
    loaded: list[Any] = []

    def count(text: str) -> int:
        if not loaded:
            from transformers import AutoTokenizer

            loaded.append(AutoTokenizer.from_pretrained(name))
        return len(loaded[0].encode(text))

    return count


def report(namespace: argparse.Namespace, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures with what was asked for and what they were measured on."""
    from jaxengine.bench import machine

    asked = {name: value for name, value in vars(namespace).items() if name not in NOT_TOLD}
    return {"machine": machine.describe(), "asked": json.loads(json.dumps(asked, default=str)), **figures}


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print figures, a column each, and what failed."""
    from jaxengine.bench.figures import table

    print(table([{name: value for name, value in row.items() if name not in NOT_SHOWN} for row in rows]))
    for error in dict.fromkeys(error for row in rows for error in row.get("errors", ())):
        print(f"failed: {error}")


def write_page(namespace: argparse.Namespace, page: Callable[[Mapping[str, Any]], Page]) -> None:
    """Write the page that `page` makes of what was asked for and of the machine, where `--html` asks for one."""
    if namespace.html is not None:
        page(report(namespace, {})).write(namespace.html)


def told(
    namespace: argparse.Namespace,
    figures: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] | None = None,
    *,
    page: Callable[[Mapping[str, Any]], Page] | None = None,
) -> int:
    """Write figures to `--output-json` and their page to `--html`, where these are given, and print them; the exit status.

    `rows` are those among the figures that are printed.
    """
    from jaxengine.bench.figures import write_json

    if namespace.output_json is not None:
        write_json(namespace.output_json, report(namespace, figures))
    if page is not None:
        write_page(namespace, page)
    show([figures] if rows is None else rows)
    return 0
