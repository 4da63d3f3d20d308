"""`python -m xla_cache`: look into stores and bundles of compiled programs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from xla_cache.errors import CacheError
from xla_cache.location import default_directory


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; what users can mend is told in one line and gives exit status 1."""
    arguments = _parser().parse_args(words)
    try:
        status: int = arguments.run(arguments)
    except CacheError as error:
        print(f"xla_cache: error: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m xla_cache", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    place = {"type": Path, "nargs": "?", "default": default_directory(), "help": "default: the user's store"}
    key = {"type": Path, "help": "ed25519 public key (PEM) that must have signed a bundle"}

    show = commands.add_parser("show", help="programs, sizes and seconds of a store or bundle, and how starts went")
    show.add_argument("place", **place)  # type: ignore[arg-type]
    show.add_argument("--key", **key)  # type: ignore[arg-type]
    show.set_defaults(run=_show)

    verify = commands.add_parser("verify", help="read everything and check every digest")
    verify.add_argument("place", **place)  # type: ignore[arg-type]
    verify.add_argument("--key", **key)  # type: ignore[arg-type]
    verify.set_defaults(run=_verify)

    diff = commands.add_parser(
        "diff", help="what differs between two stores or bundles; exit status 1 if something does"
    )
    diff.add_argument("a", type=Path)
    diff.add_argument("b", type=Path)
    diff.set_defaults(run=_diff)

    prune = commands.add_parser("prune", help="forget what was not used for long, then the least recently used")
    prune.add_argument("place", **place)  # type: ignore[arg-type]
    prune.add_argument("--older-than", type=_seconds, metavar="AGE", help="such as 12h, 30d or 8w")
    prune.add_argument("--max-size", type=_bytes, metavar="SIZE", help="such as 500M or 2G")
    prune.set_defaults(run=_prune)

    sign = commands.add_parser("sign", help="write manifest.json.sig beside the manifest of a bundle directory")
    sign.add_argument("bundle", type=Path)
    sign.add_argument("--key", type=Path, required=True, help="ed25519 private key: openssl genpkey -algorithm ed25519")
    sign.set_defaults(run=_sign)

    targets = commands.add_parser("targets", help="what programs can be compiled for, here and elsewhere")
    targets.set_defaults(run=_targets)
    return parser


def _show(arguments: argparse.Namespace) -> int:
    from xla_cache.report import open_place, show

    print("\n".join(show(open_place(arguments.place, public_key=arguments.key))))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from xla_cache.report import open_place, verify

    place = open_place(arguments.place, public_key=arguments.key)
    problems = verify(place)
    print("\n".join(problems) or f"{place.path}: {len(list(place.records()))} programs, all whole")
    return 1 if problems else 0


def _diff(arguments: argparse.Namespace) -> int:
    from xla_cache.report import diff, open_place

    lines = list(diff(open_place(arguments.a), open_place(arguments.b)))
    print("\n".join(lines) or "no difference")
    return 1 if lines else 0


def _prune(arguments: argparse.Namespace) -> int:
    from xla_cache.prune import prune
    from xla_cache.store import Store

    if arguments.older_than is None and arguments.max_size is None:
        raise CacheError("prune needs --older-than, --max-size or both")
    done = prune(Store.open(arguments.place), older_than_s=arguments.older_than, max_bytes=arguments.max_size)
    print(
        f"removed {done.removed} programs, {done.freed_bytes / 1e6:.1f} MB; left {done.left}, {done.left_bytes / 1e6:.1f} MB"
    )
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    from xla_cache.bundle import sign_bundle

    print(f"wrote {sign_bundle(arguments.bundle, arguments.key)}")
    return 0


def _targets(arguments: argparse.Namespace) -> int:
    from xla_cache.chips import GIB
    from xla_cache.target import targets

    sources = {}
    print(
        f"{'target':<11} {'devices':>7} {'hosts':>5}  each device: memory, bandwidth, bfloat16 peak   can be compiled for here"
    )
    for found in targets():
        chip, facts = found.chip, "this machine's own"
        if chip is not None:
            sources[chip.name] = chip.source
            memory, bandwidth, peak = chip.memory_bytes / GIB, chip.memory_bandwidth / 1e12, chip.matrix_flops / 1e12
            facts = f"{memory:6.2f} GiB, {bandwidth:5.2f} TB/s, {peak:6.1f} Tflop/s"
        here = "yes" if found.missing is None else f"needs {found.missing}"
        print(f"{found.name:<11} {found.num_devices or 'all':>7} {found.num_hosts:>5}  {facts:<45}  {here}")
    for name, source in sources.items():
        print(f"{name}: {source}")
    return 0


def _seconds(text: str) -> float:
    return _quantity(text, {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400})


def _bytes(text: str) -> int:
    return int(_quantity(text, {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}))


def _quantity(text: str, units: dict[str, int]) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]?)", text)
    if found is None or found[2] not in units:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number followed by one of {', '.join(filter(None, units))}"
        )
    return float(found[1]) * units[found[2]]


if __name__ == "__main__":
    sys.exit(main())
