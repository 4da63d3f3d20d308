"""Traffic of which a part shows pictures, through the engine's scheduler and accounts on a device that is a clock. JSON out.

    python -m benchmarks.replay_pictures --trace random:1500:512:128 --budgets 0 16384 8192 4096 2048 --shapes 4:256 2:512

One request in five shows one to four pictures of 0.2 to 1.8 megapixels, one in four of which was shown before; the others are
texts. `text_between_ms` is what the texts' readers wait between two tokens, with a budget of patches a step each (0: encoders
that take no time, the reference). `padded_patches` are places of encoders' launches that hold nothing, as a share of those that
hold something. A launch of the encoder lasts what reading its weights or computing its places lasts, and each picture's attention
to itself: Qwen3-VL-8B's tower (27 layers of 1,152, 4,304 in the middle, patches of 16 pixels, four to an embedding) with the
shares of a v6e's peak that `benchmarks/replaying/targets.py` says. Texts are computed as Llama-3.1-8B, which is as large.
"""

from __future__ import annotations

import argparse
import json
import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.replaying.targets import TARGETS, Target
from benchmarks.replaying.tiers import NO_TIERS, make_ledger
from buckets import Bucket, Limits, plan
from jaxengine.bench import machine, traffic
from jaxengine.bench.clock import Launch, Served, Step, serve
from jaxengine.bench.scheduled import SAMPLING, Flat, Scheduled
from jaxengine.bench.traffic import Arrival
from jaxengine.contract.media import MediaFacts, MediaItem, Modality, PromptMedia
from jaxengine.contract.request import Request
from jaxengine.device.runtime.target import DEFAULTS
from jaxengine.host.media.encoders import Encoders
from jaxengine.host.scheduler.scheduler import Scheduler
from xla_cache.chips import CHIPS

SHARE, MOST_PICTURES, KNOWN = 0.2, 4, 0.25
SIDES = (448, 768, 1024, 1344)
MOST_PATCHES = 16_384
LAYERS, WIDTH, MIDDLE = 27, 1152, 4304
TARGET = "v6e"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A launch of the encoder: its places, and the patches of each picture."""

    bucket: int
    pictures: Sequence[int]


class SeeingTarget:
    """A target with an encoder; the launches of a step before it are told beside."""

    def __init__(self, target: Target, *, free: bool) -> None:
        peak, bandwidth = CHIPS[TARGET].matrix_flops, CHIPS[TARGET].memory_bandwidth
        parameters = LAYERS * (4 * WIDTH**2 + 2 * WIDTH * MIDDLE)
        self._target = target
        self._free = free
        self._floor_s = 2 * parameters / bandwidth / 0.86
        self._patch_s = 2 * parameters / peak / 0.60
        self._pair_s = 4 * WIDTH * LAYERS / peak / 0.31
        self.encoding: list[Encoded] = []
        self.encoder_s: list[float] = []

    def seconds(self, launches: Iterable[Launch], sampled: int) -> float:
        """Of what is encoded before the step, and of the step."""
        lasting = [
            self._target.launch_s
            + max(self._floor_s, launch.bucket * self._patch_s)
            + self._pair_s * sum(count**2 for count in launch.pictures)
            for launch in self.encoding
        ]
        self.encoding = []
        self.encoder_s += lasting
        return self._target.seconds(launches, sampled) + (0.0 if self._free else sum(lasting))


class Seeing(Scheduled):
    """The engine's scheduler, with requests of which some show pictures."""

    def __init__(
        self,
        limits: Limits,
        ledger: Any,
        rule: Flat,
        device: SeeingTarget,
        shown: Sequence[Sequence[tuple[int, int]]],
        *,
        facts: MediaFacts,
        budget: int,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(limits, ledger, rule, clock=clock)
        self.encoders = Encoders(facts, budget=budget or MOST_PATCHES)
        self.scheduler = Scheduler(
            self.scheduler.limits,
            rule.grid,
            ledger,
            vocab_size=traffic.CONTENTS,
            max_in_flight=rule.in_flight,
            clock=clock,
            encoders=self.encoders,
        )
        self._device = device
        self._shown = shown
        self._clock = clock
        self._latest: dict[int, float] = {}
        self.text_between_s: array[float] = array("d")

    def add(self, number: int, arrival: Arrival) -> None:
        """A request; its pictures stand before its text."""
        prompt, items = list(arrival.token_ids()), []
        at = 0
        for name, patches in self._shown[number]:
            items.append(_item(name, patches, at))
            at += patches // 4
        self.scheduler.add(
            Request(
                request_id=str(number),
                prompt_token_ids=(1,) * at + tuple(prompt),
                sampling=SAMPLING,
                max_tokens=arrival.output,
                media=PromptMedia(items=tuple(items)) if items else None,
            )
        )

    def schedule(self) -> Step | None:
        """A step, and what is encoded before it: where there is none yet, before the next."""
        step = super().schedule()
        for encoding in self.scheduler.take_encodings()[0]:
            pictures = [len(one.item.patches) for one in encoding.items]
            self._device.encoding.append(Encoded(encoding.bucket.tokens, pictures))
        return step

    def commit(self, step: Step) -> Iterable[tuple[int, int, bool]]:
        """As it was, with a note of the texts."""
        news = [*super().commit(step)]
        for number, _, finished in news:
            if not self._shown[number]:
                if number in self._latest:
                    self.text_between_s.append(self._clock() - self._latest[number])
                self._latest[number] = self._clock()
            if finished:
                self._latest.pop(number, None)
        return news


def _item(name: int, patches: int, at: int) -> MediaItem:
    return MediaItem(
        digest=name.to_bytes(32, "little"),
        modality=Modality.IMAGE,
        patches=np.broadcast_to(np.float32(0), (patches, 1)),
        grid=(1, 1, patches),
        places=np.arange(at, at + patches // 4, dtype=np.int32),
    )


def draw(count: int, seed: int = 0) -> list[list[tuple[int, int]]]:
    """The pictures of each request: which one, and its patches."""
    chance, known, drawn = random.Random(seed), list[tuple[int, int]](), list[list[tuple[int, int]]]()
    for _ in range(count):
        pictures = []
        for _ in range(chance.randint(1, MOST_PICTURES) if chance.random() < SHARE else 0):
            if known and chance.random() < KNOWN:
                pictures.append(chance.choice(known))
                continue
            height, width = chance.choice(SIDES) // 32 * 2, chance.choice(SIDES) // 32 * 2
            known.append((len(known) + 1, height * width))
            pictures.append(known[-1])
        drawn.append(pictures)
    return drawn


def facts_of(step: int, least: int) -> MediaFacts:
    """Encoders whose launches have one `step`th of the patches of the next larger one, and a pool as an engine plans it."""
    sizes = [MOST_PATCHES]
    while sizes[-1] // step >= least:
        sizes.append(sizes[-1] // step)
    buckets = tuple(Bucket(64, patches // 64) for patches in sizes)
    return MediaFacts(modalities=(Modality.IMAGE,), buckets=buckets, num_pages=1 + 2048 + 64, page_size=16, num_axes=3)


def run(
    arrivals: Sequence[Arrival], *, step: int, least: int, budget: int, speed: float | None, host_s: float
) -> dict[str, Any]:
    """Serve the traffic with a budget of patches a step; 0: encoders take no time."""
    target, defaults = TARGETS[TARGET], DEFAULTS["tpu"]
    limits = Limits(
        max_num_seqs=defaults.max_num_seqs,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        max_model_len=32_768,
        page_size=defaults.page_size,
        free_tokens=defaults.free_tokens,
    )
    grid = plan("tokens", limits)
    facts = facts_of(step, least)
    device = SeeingTarget(target, free=not budget)
    made: list[Seeing] = []

    def make(clock: Callable[[], float]) -> Seeing:
        ledger = make_ledger(NO_TIERS, 1 + target.kv_tokens // limits.page_size, limits.page_size)
        rule = Flat(grid.with_costs(target.costs(grid.buckets)))
        made.append(Seeing(limits, ledger, rule, device, draw(len(arrivals)), facts=facts, budget=budget, clock=clock))
        return made[-1]

    served: Served = serve(make, arrivals, device, speed=speed, host_s=host_s)
    [engine] = made
    engine.scheduler.check_idle()
    stats = engine.scheduler.stats.encoders
    patches = sum(count.tokens for count in stats.shapes.values())
    places = sum(count.padded_tokens for count in stats.shapes.values())
    between = np.asarray(engine.text_between_s) * 1e3
    return {
        "shapes": [bucket.tokens for bucket in facts.buckets],
        "budget": budget,
        "text_between_ms": {
            f"p{share}": round(float(np.percentile(between, share)), 2) for share in (50, 95, 99, 99.9)
        },
        "pictures": stats.queries,
        "found": stats.hits,
        "launches_of_encoders": sum(count.steps for count in stats.shapes.values()),
        "patches": patches,
        "padded_patches": round(places / max(1, patches) - 1, 4),
        "encoder_share_of_device": round(sum(device.encoder_s) / served.device_s, 4) if budget else 0.0,
        "longest_launch_ms": round(1e3 * max(device.encoder_s, default=0.0), 2),
        **served.report(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="random:2000:512:128", help="texts: their lengths and when they arrive")
    parser.add_argument("--budgets", type=int, nargs="+", default=[0, 16_384, 8192, 4096, 2048])
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=["4:256", "2:512"],
        help="of encoders: from one to the next, and the least patches",
    )
    parser.add_argument("--speed", type=float, default=1.0, help="how many times as fast as recorded")
    parser.add_argument("--host-ms", type=float, default=1.0)
    options = parser.parse_args(arguments)
    arrivals = [replace(each, output=max(1, each.output)) for each in traffic.read(options.trace)]
    results = [
        run(arrivals, step=step, least=least, budget=budget, speed=options.speed, host_s=options.host_ms / 1e3)
        for step, least in (map(int, shapes.split(":")) for shapes in options.shapes)
        for budget in options.budgets
    ]
    print(json.dumps({"machine": machine.describe(), "trace": options.trace, "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
