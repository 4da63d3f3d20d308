"""Load on a running server: when requests are sent, and what their clients wait."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from jaxengine.bench.figures import summary_ms
from jaxengine.bench.stream import Endpoint, Timing, timed
from jaxengine.bench.workload import BenchRequest
from jaxengine.errors import ConfigError

METRICS = ("ttft", "tpot", "itl", "e2el")
"""vLLM's names of: first token, per token after it, between messages, whole answer."""
RECORDED = "trace"
"""A request rate: as the traffic was recorded."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """How requests are sent.

    `rate` is of requests per second: infinity sends all at once, `trace` as they were recorded. `burstiness` is the shape of the
    gamma distribution of the times between them (1: a Poisson process). At most `max_concurrency` are open at once. `body` are
    further fields of every request, `goodput` the milliseconds within which a request is good, by metric.
    """

    rate: float | str
    burstiness: float = 1.0
    max_concurrency: int | None = None
    seed: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    goodput: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rate != RECORDED and not float(self.rate) > 0:
            raise ConfigError(f"request_rate must be above 0, inf or {RECORDED}, got {self.rate}")
        if not self.burstiness > 0:
            raise ConfigError(f"burstiness must be above 0, got {self.burstiness}")
        unknown = self.goodput.keys() - set(METRICS)
        if unknown:
            raise ConfigError(f"goodput knows {', '.join(METRICS)}, got {', '.join(sorted(unknown))}")


def send_times(requests: Sequence[BenchRequest], load: Load) -> Iterator[float]:
    """Seconds after the start at which each is sent.

    Raises:
        ConfigError: `trace` is asked for, and when they came was not recorded.
    """
    chance, now = random.Random(load.seed), 0.0
    for request in requests:
        if load.rate == RECORDED:
            if request.time_s is None:
                raise ConfigError(f"request_rate={RECORDED} needs --dataset-name trace: other requests have no times")
            yield request.time_s
            continue
        yield now
        mean = 1 / float(load.rate)
        now += chance.gammavariate(load.burstiness, mean / load.burstiness) if mean > 0 else 0.0


async def run(
    endpoint: Endpoint, model: str, requests: Sequence[BenchRequest], load: Load, *, progress: bool = True
) -> tuple[list[Timing], float]:
    """Send all requests; their timings in the order in which they were sent, and the seconds until the last was answered."""
    times = list(send_times(requests, load))
    slots = None if load.max_concurrency is None else asyncio.Semaphore(load.max_concurrency)
    chat = endpoint.path.endswith("chat/completions")
    begun = time.perf_counter()
    with tqdm(total=len(requests), unit="request", desc=f"rate {load.rate}", disable=not progress) as bar:

        async def one(request: BenchRequest, at: float) -> Timing:
            await asyncio.sleep(at - (time.perf_counter() - begun))
            gate: AbstractAsyncContextManager[Any] = nullcontext() if slots is None else slots
            async with gate:
                timing = await timed(endpoint, _body(model, request, load, chat=chat), request.prompt_len)
            bar.update()
            return timing

        timings = await asyncio.gather(*map(one, requests, times))
    return timings, time.perf_counter() - begun


def _body(model: str, request: BenchRequest, load: Load, *, chat: bool) -> dict[str, Any]:
    """What is asked of the server.

    Raises:
        ConfigError: a chat is asked for, and the prompt is token ids.
    """
    if not chat:
        asked: dict[str, Any] = {"prompt": request.prompt, "max_tokens": request.output_len}
    elif isinstance(request.prompt, str):
        message = {"role": "user", "content": request.prompt}
        asked = {"messages": [message], "max_completion_tokens": request.output_len}
    else:
        raise ConfigError("chats are texts: use --dataset-name sharegpt with /v1/chat/completions")
    common = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }
    return {**common, **asked, **load.body}


def report(
    timings: Sequence[Timing],
    seconds: float,
    load: Load,
    *,
    metrics: Sequence[str] = METRICS,
    percentiles: Sequence[float] = (99.0,),
) -> dict[str, Any]:
    """vLLM's figures of a run; times in milliseconds, rates per second. `errors` are the first few of those that failed."""
    done = [timing for timing in timings if not timing.error]
    output, prompts = sum(timing.output_len for timing in done), sum(timing.prompt_len for timing in done)
    found: dict[str, Any] = {
        "request_rate": load.rate if load.rate == RECORDED else float(load.rate),
        "max_concurrency": load.max_concurrency,
        "completed": len(done),
        "failed": len(timings) - len(done),
        "duration": round(seconds, 3),
        "total_input_tokens": prompts,
        "total_output_tokens": output,
        "request_throughput": round(len(done) / seconds, 3),
        "output_throughput": round(output / seconds, 2),
        "total_token_throughput": round((prompts + output) / seconds, 2),
    }
    if load.goodput:
        found["request_goodput"] = round(sum(_good(timing, load.goodput) for timing in done) / seconds, 3)
    for metric in metrics:
        found |= summary_ms(metric, [value for timing in done for value in values_of(timing, metric)], percentiles)
    found["errors"] = list(dict.fromkeys(timing.error for timing in timings if timing.error))[:5]
    return found


def values_of(timing: Timing, metric: str) -> list[float]:
    """Seconds of a request by a metric: none where it has none, several where it is one between tokens."""
    if metric == "itl":
        return timing.gaps_s
    value = {"ttft": timing.first_s, "tpot": timing.per_token_s, "e2el": timing.total_s}[metric]
    return [] if value is None else [value]


def _good(timing: Timing, goodput: Mapping[str, float]) -> bool:
    return all(value * 1000 <= most for metric, most in goodput.items() for value in values_of(timing, metric))
