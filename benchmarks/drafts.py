"""What drafts bring the embedded model on this machine's CPU, and cost where they bring nothing. JSON out.

    python -m benchmarks.drafts --requests 1 8 32 --repeat 7

An engine for each method and one without drafts answer the same prompts by turns: stories to go on with, conversations and sums,
greedy, of seeds that neither the model nor its head was trained on. `noise` is for what drafts must not cost: random tokens at
temperature 2, as many at once as there are rows. All answers must be equal. Of 1 request at a time eight are answered one after
the other.

`wall_s` and `cpu_s` (of all threads, which other work on the machine lengthens less) are medians; `saved` and `cpu_saved` the
median over the rounds of one less what the method took over what the engine without drafts did in the same round. A row that
decoded brought `tokens_a_row`, `drafted_rows` are the share of rows with drafts, and of these `accepted_at` those whose token of
that position was right.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import jax
from tqdm import tqdm

from buckets import Bucket
from examples.embedded_model import chat, sums
from examples.embedded_model.corpus import render
from examples.embedded_model.stories import story
from jaxengine import LLM, SamplingParams, embedded
from jaxengine.bench import machine
from jaxengine.bench.accepted import AcceptedDrafts
from jaxengine.device.runtime.warm_up import dummy_step
from jaxengine.device.sampling import Variant

METHODS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "eagle3": {"method": "eagle3", "model": str(embedded.draft_path()), "num_speculative_tokens": 3},
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
}
KINDS = ("stories", "chat", "arithmetic", "noise")
AT_LEAST = 8
"""Requests of a round."""
TURNS = 60
"""Of plain steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="at once")
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="of requests; none: plain steps alone")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=7, help="rounds that count")
    parser.add_argument("--methods", nargs="+", default=["eagle3", "ngram"], choices=list(METHODS), help="beside none")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further engine options, as JSON")
    arguments = parser.parse_args()
    most = max(arguments.requests)
    with ExitStack() as opened:
        engines = {
            name: Measured.open(opened, METHODS[name], max_num_seqs=most, **arguments.engine_options)
            for name in ("none", *arguments.methods)
        }
        results = {
            kind: {
                str(count): measure(engines, kind, count, arguments)
                for count in ([most] if kind == "noise" else arguments.requests)
            }
            for kind in arguments.kinds
        }
        plain = {str(rows): plain_steps(engines, rows) for rows in arguments.requests}
    print(
        json.dumps(
            {
                "benchmark": "drafts",
                "machine": machine.describe(),
                **vars(arguments),
                "results": results,
                "plain_steps": plain,
            },
            indent=1,
        )
    )


@dataclass
class Measured:
    """An engine, what it took, and what became of its drafts."""

    llm: LLM
    drafts: AcceptedDrafts
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    @classmethod
    def open(cls, opened: ExitStack, speculation: Mapping[str, Any], **options: Any) -> Measured:
        """One that drafts so, until `opened` is closed. Prefixes are not kept, as prompts come again."""
        fixed = {"max_model_len": 512, "enable_prefix_caching": False, "speculative_config": dict(speculation)}
        llm = opened.enter_context(LLM(**fixed, **options))
        measured = cls(llm, AcceptedDrafts())
        llm._engine.core.recorder.listen(measured.drafts)
        return measured

    def begin(self) -> None:
        """Forget what was measured."""
        self.drafts.begin()
        self.seconds, self.cpu_seconds = [], []

    def answer(self, prompts: Sequence[Any], params: Sequence[SamplingParams], at_once: int) -> list[Any]:
        """The tokens of the answers, so many requests at once."""
        begun, cpu = time.perf_counter(), time.process_time()
        found = []
        for first in range(0, len(prompts), at_once):
            part = slice(first, first + at_once)
            outputs = self.llm.generate(list(prompts[part]), list(params[part]), use_tqdm=False)
            found += [output.outputs[0].token_ids for output in outputs]
        self.seconds.append(time.perf_counter() - begun)
        self.cpu_seconds.append(time.process_time() - cpu)
        return found


def measure(engines: Mapping[str, Measured], kind: str, count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """What each took of the same rounds, the first of which warms up. They take turns at being first."""
    prompts, params = requests(kind, max(AT_LEAST, count), arguments.max_tokens)
    names = list(engines)
    for number in tqdm(range(1 + arguments.repeat), desc=f"{kind}, {count} at once"):
        if number == 1:
            for engine in engines.values():
                engine.begin()
        names.append(names.pop(0))
        answers = {name: engines[name].answer(prompts, params, count) for name in names}
        assert all(answer == answers["none"] for answer in answers.values()), "drafts changed an answer"
    return {name: told(engine, engines["none"]) for name, engine in engines.items()}


def told(engine: Measured, beside: Measured) -> dict[str, Any]:
    """Medians, and what was saved beside the engine without drafts."""
    drafts = engine.drafts
    result: dict[str, Any] = {
        "wall_s": round(statistics.median(engine.seconds), 3),
        "cpu_s": round(statistics.median(engine.cpu_seconds), 3),
        "steps": drafts.steps,
    }
    if engine is beside:
        return result
    accepted = sum(drafts.accepted_at)
    return result | {
        "saved": _saved(engine.seconds, beside.seconds),
        "cpu_saved": _saved(engine.cpu_seconds, beside.cpu_seconds),
        "tokens_a_row": round(1 + accepted / drafts.rows, 3),
        "drafted_rows": round(drafts.drafts / drafts.rows, 3),
        "accepted_at": [round(right / drafts.drafts, 3) for right in drafts.accepted_at],
    }


def _saved(taken: Sequence[float], beside: Sequence[float]) -> float:
    return round(statistics.median(1 - mine / its for mine, its in zip(taken, beside, strict=True)), 3)


def plain_steps(engines: Mapping[str, Measured], rows: int) -> dict[str, dict[str, float]]:
    """What a step without drafts takes of each, of the smallest bucket for so many rows of one token."""
    names, taken = list(engines), {name: list[float]() for name in engines}
    for _ in range(TURNS):
        names.append(names.pop(0))
        for name in names:
            taken[name].append(_plain_step(engines[name].llm._engine.core._runner, rows))
    return {
        name: {"cpu_ms": round(1e3 * statistics.median(own), 3), "more": 0.0 - _saved(own, taken["none"])}
        for name, own in taken.items()
    }


def _plain_step(runner: Any, rows: int) -> float:
    """Seconds of all threads."""
    bucket = min((bucket for bucket in runner.buckets if bucket.batch >= rows), key=_tokens)
    launcher, layout = runner.launcher, runner.space.layout(bucket)
    step = dummy_step(launcher, layout)
    begun = time.process_time()
    state = launcher.forward(layout, step)
    jax.block_until_ready(launcher.sample(launcher.sampler.shape(rows, Variant.GREEDY), *state[:2]))
    return time.process_time() - begun


def _tokens(bucket: Bucket) -> int:
    return bucket.tokens


def requests(kind: str, count: int, max_tokens: int) -> tuple[list[Any], list[SamplingParams]]:
    """Prompts of a kind, the same for the same count, and how each is answered."""
    rng = random.Random(f"benchmarks.drafts/{kind}")
    if kind == "noise":
        prompts: list[Any] = [{"prompt_token_ids": rng.choices(range(300, 2000), k=16)} for _ in range(count)]
        return prompts, [
            SamplingParams(temperature=2.0, seed=seed, max_tokens=max_tokens, ignore_eos=True) for seed in range(count)
        ]
    return [prompt(kind, rng) for _ in range(count)], [SamplingParams(temperature=0.0, max_tokens=max_tokens)] * count


def prompt(kind: str, rng: random.Random) -> str:
    """The beginning of a story; or a conversation up to where the assistant goes on."""
    if kind == "stories":
        return " ".join(story(rng).split()[:20])
    if kind == "arithmetic":
        asked, _ = sums.sum_turn(rng) if rng.random() < 0.5 else sums.practice_turn(rng)
        return render([{"role": "user", "content": asked}], prompt=True)
    messages = chat.conversation(rng)
    last = max(number for number, message in enumerate(messages) if message["role"] == "user")
    return render(messages[: last + 1], prompt=True)


if __name__ == "__main__":
    main()
