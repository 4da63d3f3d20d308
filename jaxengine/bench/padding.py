"""What a grid of shapes wastes on given traffic: the engine's scheduler and page accounts, replayed on a device that is a clock.

No weights are read and nothing is compiled or run. A step lasts as long as the model and the device allow at the least
(`work.py`): reading the weights or computing all places of its bucket, real or not, and on top of that reading the keys and
values of the contexts, computing the attention of prompts, and the projection to logits. What the host needs is left out.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from buckets import OPTIONS, PLANNERS, Bucket, Grid, candidates, fitted
from jaxengine.bench.clock import Engine, Launch, Served, Step, serve
from jaxengine.bench.scheduled import Flat, Scheduled
from jaxengine.bench.serving import Load, send_times
from jaxengine.bench.traffic import OWN, Arrival
from jaxengine.bench.work import Work
from jaxengine.bench.workload import BenchRequest
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.errors import ConfigError
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.options.config import EngineConfig
from jaxengine.startup.grid import bounds_of, costed, plan_grid
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from jaxengine.startup.roofline import NOMINAL
from xla_cache.target import Target

CONFIGURED, TRAFFIC = "configured", "traffic"
"""Grids: of the engine's options, and planned from the replayed traffic itself."""
GRIDS = (CONFIGURED, *(name for name in PLANNERS if name != "explicit"), TRAFFIC)


@dataclass
class ShapeUse:
    """The steps of one bucket."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Replay:
    """What one grid made of the traffic."""

    name: str
    grid: Grid
    served: Served = field(default_factory=Served)
    uses: dict[Bucket, ShapeUse] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Its figures; `padding` is padded places over all places, `shapes` lists each bucket's part."""
        served, seconds = self.served.report(), self.served.device_s
        spent = self.served.places - self.served.tokens
        return {
            "grid": self.name,
            "programs": len(self.grid),
            "steps": served["steps"],
            "computed_tokens": served["computed_tokens"],
            "padded_places": spent,
            "padding": round(spent / max(1, self.served.places), 4),
            "device_s": round(seconds, 3),
            "duration_s": round(self.served.wall_s, 3),
            "output_tokens_per_s": served["output_tokens_per_s"],
            **{
                f"{share}_{name}_ms": served[key][share]
                for name, key in (("ttft", "first_token_ms"), ("itl", "between_tokens_ms"))
                for share in ("p50", "p99")
            },
            "buckets": " ".join(map(str, self.grid.buckets)),
            "shapes": [self._of(bucket) for bucket in self.grid.buckets],
        }

    def _of(self, bucket: Bucket) -> dict[str, Any]:
        use = self.uses.get(bucket, ShapeUse())
        return {
            "shape": str(bucket),
            "places": bucket.tokens,
            "steps": use.steps,
            "tokens": use.tokens,
            "padded_places": use.steps * bucket.tokens - use.tokens,
            "device_s": round(use.seconds, 3),
        }


@dataclass(frozen=True)
class LeastTime:
    """A device on which every step lasts as long as it must at the least."""

    work: Work
    space: ProgramSpace

    def seconds(self, launches: Iterable[Launch], sampled: int) -> float:
        roofline, total = self.work.roofline, 0.0
        for launch in launches:
            pairs = sum(count * start + count * (count + 1) // 2 for start, count in launch.prompts)
            total += roofline.floor(launch.places, sampling=False)[0]
            total += launch.context * self.work.token_bytes / roofline.speed.memory_bandwidth
            total += pairs * self.work.pair_flops / roofline.speed.matrix_flops
        if sampled:
            total += roofline.floor(self.space.sampling.rows_for(sampled), sampling=True)[0]
        return total


class Padding:
    """An engine without weights and programs, to replay traffic on."""

    def __init__(self, config: EngineConfig, target: Target) -> None:
        """Plan the engine's shapes and its KV cache.

        Raises:
            ConfigError: the engine cannot be planned, or speculates, which a replay cannot.
            CapacityError: the model does not fit the target.
        """
        if config.scheduler.speculation is not None:
            raise ConfigError("bench padding has no tokens to draft from; leave speculative_config out")
        self._config = config
        prepared = prepare(config, Progress(), target=target)
        self._model, planned = prepared.model, plan_space(prepared, measure=False)
        self.space, self.limits = planned.space, planned.limits
        speed = target.chip or NOMINAL[self._model.platform]
        self._device = LeastTime(Work.of(self._model, speed), self.space)

    @property
    def model(self) -> ModelPlan:
        return self._model

    def replays(self, arrivals: Sequence[Arrival], grids: Iterable[str], *, recorded: bool) -> Iterator[Replay]:
        """The traffic on each grid in turn. `recorded`: requests come at their times; else there is always one that waits.

        Raises:
            ConfigError: an unknown grid, or no request that the engine can hold.
        """
        grids = tuple(grids)
        if unknown := set(grids) - set(GRIDS):
            raise ConfigError(f"grids are {', '.join(GRIDS)}, got {', '.join(sorted(unknown))}")
        fitting = [arrival for arrival in arrivals if self.holds(arrival)]
        if not fitting:
            raise ConfigError(
                f"none of the {len(arrivals)} requests fits the context of {self.limits.max_model_len} tokens and the KV cache"
            )
        for name in grids:
            if name == TRAFFIC:
                ladder = costed(candidates(bounds_of(self.limits)), self.limits, self._model)
                fine = self._replay(f"{TRAFFIC}, to plan", ladder, fitting, recorded=recorded)
                taken = Counter({bucket: use.steps for bucket, use in fine.uses.items()})
                grid = fitted(ladder, taken, len(self._planned("tokens")))
            else:
                grid = self._planned(name)
            yield self._replay(name, grid, fitting, recorded=recorded)

    def holds(self, arrival: Arrival) -> bool:
        """Whether a request fits the context, and the KV cache when it is alone."""
        length = arrival.prompt + arrival.output
        needs = self.space.cache.pages_held(
            min(length, self.limits.max_model_len),
            page_size=self.limits.page_size,
            ahead=self.limits.max_num_batched_tokens,
        )
        return length <= self.limits.max_model_len and all(
            need < pages for need, pages in zip(needs, self.space.num_pages, strict=True)
        )

    def _planned(self, name: str) -> Grid:
        if name == CONFIGURED:
            return self.space.grid
        plain: dict[str, Any] = dict.fromkeys(frozenset().union(*OPTIONS.values()))
        config = dataclasses.replace(
            self._config,
            compilation=dataclasses.replace(self._config.compilation, bucket_planner=name, **plain),
            scheduler=dataclasses.replace(self._config.scheduler, deterministic=False),
        )
        return plan_grid(config, self.limits, self._model)

    def _replay(self, name: str, grid: Grid, arrivals: Sequence[Arrival], *, recorded: bool) -> Replay:
        replay = Replay(name, grid)
        limits, layout = bounds_of(self.limits), self.space.cache
        pools = [PagePool(pages, pool.windows) for pages, pool in zip(self.space.num_pages, layout.pools, strict=True)]
        caching = self._config.cache.enable_prefix_caching and not layout.states
        ledger = Ledger(pools, limits.page_size, enable_prefix_caching=caching)

        def make(clock: Callable[[], float]) -> Engine:
            return Scheduled(limits, ledger, Flat(grid), clock=clock)

        def launched(step: Step, seconds: float) -> None:
            use = replay.uses.setdefault(step.plan[0].bucket, ShapeUse())
            use.steps += 1
            use.tokens += step.tokens
            use.seconds += seconds

        with tqdm(total=len(arrivals), desc=name, unit="request", leave=False) as bar:
            replay.served = serve(
                make, arrivals, self._device, speed=1.0 if recorded else None, done=bar.update, launched=launched
            )
        ledger.check()
        return replay


def arrivals_of(requests: Sequence[BenchRequest], load: Load) -> list[Arrival]:
    """Requests as traffic: prompts of tokens as they are, texts as so many tokens of their own."""
    arrivals = []
    for number, (request, time_s) in enumerate(zip(requests, send_times(requests, load), strict=True)):
        if isinstance(request.prompt, str):
            runs: tuple[tuple[int, int], ...] = ((OWN + number, request.prompt_len),)
        else:
            runs = tuple(runs_of(request.prompt))
        arrivals.append(Arrival(time_s, runs, request.output_len))
    return sorted(arrivals, key=lambda arrival: arrival.time_s)


def runs_of(tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Tokens as runs of equal ones."""
    first = 0
    for at in range(1, len(tokens) + 1):
        if at == len(tokens) or tokens[at] != tokens[first]:
            yield tokens[first], at - first
            first = at


def shape_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each shape of a report that was taken, and how many were not."""
    columns = ("shape", "places", "steps", "tokens", "padded_places", "device_s")
    taken = [shape for shape in report["shapes"] if shape["steps"]]
    cells = [columns, *(tuple(str(shape[name]) for name in columns) for shape in taken)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
    if idle := len(report["shapes"]) - len(taken):
        yield f"never taken: {idle}"
