"""jaxengine, vLLM, transformers and llama.cpp on one model, in turn. A table, and JSON with `--json FILE` after every round.

    python -m benchmarks.compare --model DIR --vllm-python VLLM_ENVIRONMENT/bin/python --requests 1 8 32 --rounds 3
    python -m benchmarks.compare --model DIR --quantization int8 int4 fp8 --also NAME=vllm:W8A8_DIR --vllm-python ...
    python -m benchmarks.compare --model DIR --quantization int8 int4 --llama-cpp-python LLAMA_ENVIRONMENT/bin/python \\
        --also "llama.cpp BF16=llama_cpp:BF16.gguf" "llama.cpp Q8_0=llama_cpp:Q8_0.gguf" "llama.cpp Q4_0=llama_cpp:Q4_0.gguf"

Each engine is a process of its own (`benchmarks/peers/`) that loads the checkpoint once. In every round each of them answers the
same prompts of random token ids, in an order that turns from round to round; the others are stopped (SIGSTOP). Two
times are taken around a whole call of the engine: with one token of output (the first token of the last request), and with all of
them; what lies between is decoding. Prefix caching is off, output is greedy and ignores the end of text. Ratios are medians of
the ratios within a round: in the table of plain jaxengine to each of the others, in the JSON of every form of it. `of_bandwidth`
of jaxengine is the least time of a decode step, its weights' bytes at the bandwidth measured in the same round, over the time
that it took.

vLLM and transformers read the checkpoint of `--model` where their interpreter is given. llama.cpp reads GGUF files of the same
weights, each named with `--also`; its environment has llama-cpp-python, built for this processor.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from benchmarks.memory import read_bandwidth
from jaxengine.bench import machine
from jaxengine.options.config import EngineConfig
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from jaxengine.startup.roofline import NominalSpeed

PEERS = Path(__file__).parent / "peers"
MEASURES = ("output_tokens_per_s", "decode_tokens_per_s", "first_token_s")


@dataclass(frozen=True)
class Load:
    """So many equal requests at once, lengths in tokens."""

    requests: int
    prompt_len: int
    output_len: int

    def __str__(self) -> str:
        return f"{self.requests} x ({self.prompt_len} + {self.output_len})"

    def prompts(self, rng: random.Random, vocab_size: int) -> list[list[int]]:
        low, high = min(1000, vocab_size // 4), min(30_000, vocab_size)
        return [[rng.randrange(low, high) for _ in range(self.prompt_len)] for _ in range(self.requests)]


class Peer:
    """An engine in a process of its own, which runs only while it is asked: one of the scripts of `benchmarks/peers/`."""

    def __init__(self, name: str, script: str, python: str, settings: Mapping[str, Any]) -> None:
        command = [python, str(PEERS / f"{script}.py"), json.dumps(settings)]
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        self.about = self._answer()
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def measure(self, prompts: Sequence[Sequence[int]], output_len: int) -> dict[str, float]:
        """Seconds to the first token of all prompts, and output tokens a second, of the whole call and after the first tokens."""
        answer = self.ask({"prompts": prompts, "output_len": output_len})
        expected = len(prompts) * output_len
        if answer["tokens"] != expected:
            raise SystemExit(f"{self.name} generated {answer['tokens']} tokens, not {expected}")
        first = answer["first_token_s"]
        decode = (expected - len(prompts)) / (answer["seconds"] - first) if output_len > 1 else 0.0
        return {
            "output_tokens_per_s": expected / answer["seconds"],
            "decode_tokens_per_s": decode,
            "first_token_s": first,
        }

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What it answers; it runs meanwhile."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with exit status {self._process.wait()}; its errors are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # peers are ended, too
    vocab_size = json.loads((options.model / "config.json").read_text())["vocab_size"]
    loads = [Load(count, options.prompt_len, options.output_len) for count in options.requests]
    settings = {
        "model": str(options.model),
        "dtype": options.dtype,
        "max_model_len": options.prompt_len + options.output_len,
        "max_num_seqs": max(options.requests),
    }
    rng = random.Random(0)
    measured: dict[Load, list[dict[str, dict[str, float]]]] = {load: [] for load in loads}
    with ExitStack() as stack, tqdm(total=len(loads) * (options.rounds + 1), unit="load") as progress:
        peers, about, read_bytes = [], {}, {}
        for name, engine, own in engines(options):
            progress.set_description(f"{name}: loading")
            given = settings | own
            peers.append(stack.enter_context(Peer(name, f"ask_{engine}", interpreter(options, engine), given)))
            about[name] = {"engine": engine, "model": Path(given["model"]).name, **peers[-1].about}
            if engine == "jaxengine":
                read_bytes[name] = decode_bytes(given)
        for round_number in range(-1, options.rounds):
            for load in loads:
                prompts = load.prompts(rng, vocab_size)
                found: dict[str, dict[str, float]] = {}
                bandwidth = read_bandwidth(5)
                for peer in turned(peers, round_number):
                    progress.set_description(f"{peer.name}: {load}")
                    found[peer.name] = peer.measure(prompts, load.output_len)
                for name, nbytes in read_bytes.items():
                    steps_per_s = found[name]["decode_tokens_per_s"] / load.requests
                    found[name]["of_bandwidth"] = nbytes * steps_per_s / bandwidth
                if round_number >= 0:  # the first round is for what is done once for a shape
                    measured[load].append(found)
                progress.update()
            if round_number >= 0 and options.json is not None:
                report = {
                    "benchmark": "compare",
                    "machine": machine.describe(),
                    "model": options.model.name,
                    "dtype": options.dtype,
                    "engine_options": options.engine_options,
                    "engines": about,
                    "decode_bytes": read_bytes,
                    "loads": [vars(load) | summary(rounds, list(read_bytes)) for load, rounds in measured.items()],
                }
                options.json.write_text(json.dumps(report, indent=2) + "\n")
    show(measured)


def engines(options: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, engine and further settings of each that is asked."""
    yield "jaxengine", "jaxengine", options.engine_options
    for form in options.quantization:
        yield f"jaxengine {form}", "jaxengine", options.engine_options | {"quantization": form}
    for given in options.variant:
        name, _, own = given.partition("=")
        yield f"jaxengine {name}", "jaxengine", options.engine_options | json.loads(own)
    for engine in ("vllm", "transformers"):
        if getattr(options, f"{engine}_python") is not None:
            yield engine, engine, {}
    for given in options.also:
        name, _, rest = given.partition("=")
        engine, _, model = rest.partition(":")
        own = options.engine_options if engine == "jaxengine" else {}
        yield name, engine, own | {"model": model}


def interpreter(options: argparse.Namespace, engine: str) -> str:
    """The Python that has this engine."""
    if engine == "jaxengine":
        return sys.executable
    python: str | None = getattr(options, f"{engine}_python", None)
    if python is None:
        raise SystemExit(
            f"engine {engine!r} has no interpreter: give --{engine.replace('_', '-')}-python; engines are jaxengine, vllm, "
            "transformers, llama_cpp and openvino"
        )
    return python


def decode_bytes(settings: dict[str, Any]) -> int:
    """Of weights, that a step reads."""
    prepared = prepare(EngineConfig.from_options(**settings), Progress(lambda told: None))
    roofline = prepared.model.roofline(NominalSpeed(1.0, 1.0, 1.0))
    return roofline.layer_bytes + roofline.head_bytes + roofline.expert_bytes


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", nargs="*", default=[], help="jaxengine with these, too")
    parser.add_argument(
        "--variant", nargs="*", default=[], metavar="NAME=JSON", help="jaxengine with these options, too"
    )
    parser.add_argument(
        "--also",
        nargs="*",
        default=[],
        metavar="NAME=ENGINE:MODEL",
        help="another checkpoint, by jaxengine, vllm, transformers, llama_cpp (of a GGUF file) or openvino (of an export)",
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-python", help="interpreter of an environment that has vLLM")
    parser.add_argument("--transformers-python", help="interpreter of an environment that has torch and transformers")
    parser.add_argument("--llama-cpp-python", help="interpreter of an environment that has llama-cpp-python")
    parser.add_argument("--openvino-python", help="interpreter of an environment that has openvino-genai")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further options of jaxengine, as JSON")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args()


def turned(peers: list[Peer], round_number: int) -> list[Peer]:
    start = round_number % len(peers)
    return peers[start:] + peers[:start]


def summary(rounds: list[dict[str, dict[str, float]]], ours: Sequence[str]) -> dict[str, Any]:
    """For each engine and measure all rounds and their median; the median ratio of each that is `ours` to each of the others."""
    if not rounds:
        return {}
    engines = list(rounds[0])
    shares = {
        name: [round(found[name]["of_bandwidth"], 3) for found in rounds]
        for name in engines
        if "of_bandwidth" in rounds[0][name]
    }
    return {"of_bandwidth": shares} | {
        measure: {
            "median": {name: round(median(found[name][measure] for found in rounds), 3) for name in engines},
            "all": {name: [round(found[name][measure], 3) for found in rounds] for name in engines},
            "ratio": {
                own: {name: round(ratio(rounds, measure, own, name), 2) for name in engines if name != own}
                for own in ours
            },
        }
        for measure in MEASURES
    }


def ratio(rounds: list[dict[str, dict[str, float]]], measure: str, own: str, other: str) -> float:
    return median(found[own][measure] / found[other][measure] for found in rounds)


def show(measured: dict[Load, list[dict[str, dict[str, float]]]]) -> None:
    """Medians, and in brackets the median ratio of jaxengine's to an engine's."""
    table = Table("requests", "engine", "output tokens/s", "decoding", "first token, s", "of bandwidth")
    for load, rounds in measured.items():
        for name in rounds[0]:
            cells = []
            for measure, form in zip(MEASURES, ("{:.1f}", "{:.1f}", "{:.3f}"), strict=True):
                cell = form.format(median(found[name][measure] for found in rounds))
                cells.append(
                    cell if name == "jaxengine" else f"{cell} ({ratio(rounds, measure, 'jaxengine', name):.2f})"
                )
            shares = [found[name]["of_bandwidth"] for found in rounds if "of_bandwidth" in found[name]]
            cells.append(f"{median(shares):.0%}" if shares else "")
            table.add_row(str(load) if name == "jaxengine" else "", name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
