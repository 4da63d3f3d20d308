"""Sampling options on a command line: each sampling option of a request, None of them given unless it is."""

from __future__ import annotations

import argparse
from typing import Any

from jaxengine.contract.sampling_options import OPTIONS

COUNTS = ("n", "max_tokens", "min_tokens", "logprobs")
"""Other fields of `SamplingParams` that are integers."""


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    group = parser.add_argument_group("sampling options (default: the model's generation_config.json)")
    for option in OPTIONS:
        group.add_argument(_flag(option.name), type=option.kind, default=argparse.SUPPRESS, help=option.about)
    for name in COUNTS:
        group.add_argument(_flag(name), type=int, default=argparse.SUPPRESS)
    group.add_argument("--sampling-seed", type=int, default=argparse.SUPPRESS, help="seed of the request")
    group.add_argument(
        "--stop", action="append", default=argparse.SUPPRESS, help="stop string; may be given several times"
    )
    group.add_argument("--ignore-eos", action="store_true", default=argparse.SUPPRESS)


def given_sampling(namespace: argparse.Namespace) -> dict[str, Any]:
    """Those that were given, by the names of `SamplingParams`, which are those of a request's body."""
    names = (*(option.name for option in OPTIONS), *COUNTS, "stop", "ignore_eos")
    given = {name: getattr(namespace, name) for name in names if hasattr(namespace, name)}
    if hasattr(namespace, "sampling_seed"):
        given["seed"] = namespace.sampling_seed
    return given


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
