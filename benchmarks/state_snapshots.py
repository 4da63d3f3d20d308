"""Where copies of recurrent layers' states pay: a recorded conversation trace against the engine's own accounts. JSON out.

    python -m benchmarks.state_snapshots --trace conversation_trace.jsonl.gz --json benchmarks/results/state_snapshots.json

Prompts of a Mooncake trace come one after the other, blocks of 512 tokens known by their hashes, to a ledger with the memory that
`jaxengine plan` leaves a model on a target, divided between pages and copies of states in some way. What is counted is the share
of prompt tokens that are not computed, by where copies are made; `moved` are bytes copied on a device, those restored among them.
With pages alone (`attention`) every page would do to go on from: what the same memory finds for a model without states.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from jaxengine.bench import machine
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Chain
from jaxengine.host.kvcache.snapshots import Snapshots

BLOCK = 512
"""Tokens that a hash of the trace stands for. A page of the ledger here is one block, and a token is its hash."""


@dataclass(frozen=True)
class Model:
    """Bytes on one device of eight v6e: of a token's keys and values, of one copy of states, and of all pages and copies."""

    name: str
    token_bytes: int
    snapshot_bytes: int
    memory: int


MODELS = (
    Model("Qwen3-Next-80B-A3B on v6e-8", 12_288, 9_647_000, int(6.65 * 2**30)),
    Model("Qwen3.5-27B on v6e-8", 16_384, 19_293_000, int(16.83 * 2**30)),
)


@dataclass(frozen=True)
class Rule:
    """Copies at prompts' ends, with `parts` where prompts part, with `every` at multiples of so many blocks.

    They have `share` of the memory; without any, no state is to be restored.
    """

    name: str
    share: float
    parts: bool = True
    every: int = 0


RULES = (
    Rule("attention", 0.0),
    *(Rule("ends", share, parts=False) for share in (1 / 4,)),
    *(Rule("ends and parts", share) for share in (1 / 16, 1 / 8, 1 / 4, 1 / 2)),
    *(Rule(f"and every {every * BLOCK}", share, every=every) for every in (16, 8, 4, 1) for share in (1 / 4, 1 / 2)),
)


class EndsAlone(Snapshots):
    """Does not look for where prompts part."""

    def _in_common(self, chain: Chain, tokens: Sequence[int], found: int, limit: int) -> int:
        return found


@dataclass(frozen=True)
class Found:
    """What a rule found of a trace."""

    model: str
    memory: float
    rule: str
    share: float
    pages: int
    snapshots: int
    found: float
    made: int
    restored: int
    moved: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, help="the first so many alone")
    parser.add_argument("--memory", type=float, nargs="+", default=[1.0, 8.0], help="times that of the models")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    prompts = list(read(arguments.trace))[: arguments.requests]
    cases = [(model, times, rule) for model in MODELS for times in arguments.memory for rule in RULES]
    results = [replay(prompts, *case) for case in tqdm(cases)]
    for each in results:
        print(
            f"{each.model} x{each.memory:<4} {each.rule:20} {each.share:<6} {each.found:7.1%} {each.moved / 2**30:9.1f} GiB"
        )
    if arguments.json is not None:
        written = {"machine": machine.describe(), "trace": arguments.trace.name, "results": [*map(asdict, results)]}
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


def read(path: Path) -> Iterator[list[int]]:
    """The hashes of each prompt's blocks, whole ones only."""
    with gzip.open(path, "rt") as lines:
        for line in lines:
            request = json.loads(line)
            yield request["hash_ids"][: request["input_length"] // BLOCK]


def replay(prompts: Sequence[list[int]], model: Model, times: float, rule: Rule) -> Found:
    """One prompt after the other."""
    memory = int(times * model.memory)
    num_snapshots = int(memory * rule.share) // model.snapshot_bytes
    num_pages = int(memory * (1 - rule.share)) // (BLOCK * model.token_bytes)
    kind = Snapshots if rule.parts else EndsAlone
    snapshots = kind(num_snapshots, page_size=1, block=1, every=rule.every) if num_snapshots else None
    ledger = Ledger([PagePool(1 + num_pages)], 1, snapshots=snapshots)
    made = restored = total = hits = 0
    for number, blocks in enumerate(prompts):
        tokens = [*blocks, -1 - number]  # what is left behind the last block is nobody else's
        if len(tokens) > num_pages:
            continue
        computed = ledger.add(number, tokens, ledger.chain(None))
        assert ledger.grow(number, len(tokens))
        total, hits = total + len(blocks), hits + computed
        if snapshots is None:
            ledger.commit(number, tokens, len(blocks))
        else:
            restored += snapshots.begin(number) is not None
            last = len(blocks)
            while end := snapshots.next_end(number, tokens, start=computed, last=last, most=last):
                made += snapshots.keep(number, end) is not None
                ledger.commit(number, tokens, end)
                computed = end
        ledger.release(number)
    moved = (made + restored) * model.snapshot_bytes
    return Found(
        model.name,
        times,
        rule.name,
        rule.share,
        num_pages,
        num_snapshots,
        round(hits / total, 4),
        made,
        restored,
        moved,
    )


if __name__ == "__main__":
    raise SystemExit(main())
