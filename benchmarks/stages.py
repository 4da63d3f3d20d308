"""The share of time in which the stages of a pipeline work at once, on CPU devices. JSON out.

    python -m benchmarks.stages --output benchmarks/results/stages.json

A stage works on a step from when it has what it needs (the step was launched, the stage before has ended it, it has ended its
step before, and of tokens that it has to be given those were sampled) until its last output is there, which a thread for each
stage waits for. Beside it, what it would be with every sequence in every step, as with one stage. On a machine of few cores one
stage takes them all, so the share is the subject here, and not tokens per second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEVICES = 2
TOKENS, PROMPT = 32, 24
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


@dataclass
class Part:
    """What a stage did of a step: when it was launched, and when its last output was there."""

    launched: float
    ended: float = 0.0


@dataclass
class Watched:
    """The steps of one run, in order: what each stage did of each, and of which step it had to be given tokens, if of any."""

    steps: list[list[Part]] = field(default_factory=list)
    needs: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(DEVICES)]
        self._threads = [threading.Thread(target=self._watch, args=(stage,)) for stage in range(DEVICES)]
        for thread in self._threads:
            thread.start()

    def begin(self, needs: int | None) -> None:
        """A step is about to be launched."""
        self.steps.append([])
        self.needs.append(needs)

    def launch(self, stage: int) -> None:
        """The first program of a stage is called."""
        if len(self.steps[-1]) == stage:
            self.steps[-1].append(Part(time.perf_counter()))

    def give(self, stage: int, output: Any) -> None:
        """What a stage gives last of the step launched last."""
        self._queues[stage].put((self.steps[-1][stage], output))

    def settle(self) -> None:
        """Wait until all has ended."""
        for waiting, thread in zip(self._queues, self._threads, strict=True):
            waiting.put(None)
            thread.join()

    def _watch(self, stage: int) -> None:
        import jax

        while (noted := self._queues[stage].get()) is not None:
            part, output = noted
            jax.block_until_ready(output)
            part.ended = time.perf_counter()

    def spans(self, stage: int) -> Iterator[tuple[float, float]]:
        """When a stage worked."""
        for number, (step, needs) in enumerate(zip(self.steps, self.needs, strict=True)):
            waits = [step[stage].launched]
            if number:
                waits.append(self.steps[number - 1][stage].ended)
            if stage:
                waits.append(step[stage - 1].ended)
            elif needs is not None:
                waits.append(self.steps[needs][-1].ended)
            yield min(step[stage].ended, max(waits)), step[stage].ended


class WatchedRunner:
    """Tells of every step of a runner what happens to it, and changes nothing."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._launch, self._call, self._handover = runner.launch, runner.launcher.call, runner.launcher.handover
        self._step_of: dict[int, int] = {}
        self.watched = Watched()
        runner.launch, runner.launcher.call = self.launch, self.call

    def again(self) -> None:
        """Watch another run."""
        self._step_of, self.watched = {}, Watched()

    def launch(self, batch: Any) -> Any:
        unknown = [slot for slot, tokens in zip(batch.rows.slots, batch.rows.tokens, strict=True) if tokens is None]
        needed = max((int(self._handover._sampled[slot]) for slot in unknown), default=0)
        self._step_of[batch.number] = len(self.watched.steps)
        self.watched.begin(self._step_of.get(needed))
        pending = self._launch(batch)
        given = getattr(pending, "outputs", None)
        self.watched.give(DEVICES - 1, pending.hidden if given is None else given.tokens)
        return pending

    def call(self, name: str, *arguments: Any) -> Any:
        kind, *words = name.split()
        stage = int(words[words.index("stage") + 1]) if kind == "forward" else None
        if stage is not None:
            if stage and len(self.watched.steps[-1]) == stage:
                self.watched.give(stage - 1, arguments[1])  # what came from the stage before, on this one's device
            self.watched.launch(stage)
        return self._call(name, *arguments)


def shares(spans: Sequence[Sequence[tuple[float, float]]]) -> dict[str, float]:
    """Parts of the time in which any stage works: each alone, and all at once."""
    edges = sorted({edge for of_stage in spans for span in of_stage for edge in span})
    busy = dict.fromkeys(range(len(spans) + 1), 0.0)
    alone = [0.0] * len(spans)
    for begin, end in itertools.pairwise(edges):
        at = (begin + end) / 2
        working = [any(first <= at < last for first, last in of_stage) for of_stage in spans]
        busy[sum(working)] += end - begin
        for stage, works in enumerate(working):
            alone[stage] += (end - begin) * works
    total = sum(seconds for count, seconds in busy.items() if count)
    return {
        "all": round(busy[len(spans)] / total, 3),
        **{f"stage {stage}": round(seconds / total, 3) for stage, seconds in enumerate(alone)},
        "none, of all time": round(busy[0] / (total + busy[0]), 3),
    }


def measure(directory: Path, requests: int, *, spread: bool, times: int) -> dict[str, Any]:
    """Decode so many requests on two stages, after once to warm up; the median of so many runs by share."""
    from jaxengine.contract.sampling_params import SamplingParams
    from jaxengine.options.config import EngineConfig
    from jaxengine.startup.build import build_engine
    from tests.integration.engines import run

    engine = build_engine(
        EngineConfig.from_options(
            model=str(directory),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=128,
            max_num_seqs=requests,
            max_num_batched_tokens=256,
            page_size=16,
            bucket_planner="explicit",
            buckets=(f"{requests}x{256 // requests}", f"{requests}x1", f"{requests // 2}x1"),
            enable_prefix_caching=False,
            pipeline_parallel_size=DEVICES,
        )
    )
    if not spread:
        engine.core.scheduler._turns = 1
    prompts = [[3 + (7 * request + place) % 4000 for place in range(PROMPT)] for request in range(requests)]
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    run(engine, prompts, params)
    watching = WatchedRunner(engine.core._runner)
    found = []
    for _ in range(times):
        watching.again()
        begun = time.perf_counter()
        outputs = run(engine, prompts, params)
        seconds = time.perf_counter() - begun
        watching.watched.settle()
        work = shares([list(watching.watched.spans(stage)) for stage in range(DEVICES)])
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        found.append((work, len(watching.watched.steps), tokens / seconds))
    found.sort(key=lambda each: each[0]["all"])
    work, steps, rate = found[times // 2]
    compilations = engine.compile_counter.count
    engine.close()
    return {
        "requests": requests,
        "sequences take turns": spread,
        "steps": steps,
        "compilations": compilations,
        "share of time in which stages work": work,
        "all, each time": [each["all"] for each, _, _ in found],
        "tokens/s": round(rate, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="file for the JSON, beside printing it")
    parser.add_argument("--times", type=int, default=3, help="how often each is measured; the median by share is told")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    from jaxengine.bench import machine

    results = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "config.json").write_text(json.dumps(MODEL))
        for requests in (8, 32):
            for spread in (True, False):
                print(f"{requests} requests, turns {spread}", file=sys.stderr)
                results.append(measure(directory, requests, spread=spread, times=options.times))
    report = {
        "benchmark": "stages",
        "machine": machine.describe(),
        "model": {name: MODEL[name] for name in ("hidden_size", "num_hidden_layers", "vocab_size", "torch_dtype")},
        "load": "the machine was shared: the share is of time, and tokens/s mean nothing here",
        "devices": f"{DEVICES} CPU devices of one process",
        "results": results,
    }
    print(json.dumps(report, indent=2))
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
