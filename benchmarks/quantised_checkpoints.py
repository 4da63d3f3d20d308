"""Checkpoints that other libraries quantised, read by jaxengine: log probabilities and greedy answers beside the dense model's.

    python benchmarks/quantised_checkpoints.py --directory WORK --tokenizer DIRECTORY --text FILE \\
        --pythons llmcompressor=ENVIRONMENT/bin/python gptqmodel=ENVIRONMENT/bin/python

Each library makes small random models in an environment of its own (`benchmarks/peers/quantise_*.py`), and says what the matrices
that it wrote stand for; transformers computes with them in float32. What is refused is listed with the message. JSON with `--json
FILE`. Without `--pythons` what lies in WORK is read again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxengine import LLM, SamplingParams
from jaxengine.bench import machine
from jaxengine.device.weights.checkpoint import open_checkpoint
from jaxengine.errors import ConfigError

REFUSED = (
    "autoawq-gemv",
    "gptq-3",
    "torchao-int8",
    "mxfp4",
    "mxfp4a16",
    "mxfp8",
    "w3a16",
    "w4a8",
    "w4afp8",
)
"""Those that are not built."""
SAMPLE, OUTPUTS, RECORDED = "model.layers.1.self_attn.k_proj", 128, 8
"""The matrix of which a part is recorded, how many outputs it has, and how many of these."""
PEERS = Path(__file__).parent / "peers"
MOST = 1e-3
"""That a log probability may be off."""
MOST_OF_NOISE = 2
"""Where activations are rounded to int8 one whose last bit differs goes to the next integer, which a random model feels: how many
times what noise of that size does. Their matrices are held to `MOST` without the rounding."""


@dataclass(frozen=True)
class Found:
    """How a checkpoint was read. `error`: of log probabilities, the largest."""

    library: str
    checkpoint: str
    model: str
    outcome: str
    right: bool
    error: float | None = None
    same_answers: bool | None = None
    matrices: int | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="where checkpoints are written, by library")
    parser.add_argument(
        "--pythons", nargs="*", default=[], metavar="LIBRARY=PYTHON", help="interpreters that have them"
    )
    parser.add_argument("--tokenizer", type=Path, help="directory of a tokenizer with 512 tokens or fewer")
    parser.add_argument("--text", type=Path, help="text on which they are calibrated")
    parser.add_argument("--only", nargs="*", default=[], help="names of checkpoints")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", type=Path, help="directory for what tests read: a part of one matrix of each")
    options = parser.parse_args()
    for given in options.pythons:
        library, _, python = given.partition("=")
        write(library, python, options)
    found = list(read(options.directory, options.only))
    show(found)
    if options.record is not None:
        record(options, [one for one in found if one.error is not None and one.right])
    if options.json is not None:
        versions = {path.parent.name: json.loads(path.read_text())["versions"] for path in outcomes(options.directory)}
        report = {"machine": machine.describe(), "versions": versions, "checkpoints": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if not all(one.right for one in found):
        raise SystemExit("not all agree")


def write(library: str, python: str, options: argparse.Namespace) -> None:
    directory = (options.directory / library).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    asked = {
        "directory": str(directory),
        "tokenizer": str(options.tokenizer.resolve()),
        "text": str(options.text.resolve()),
        "only": options.only,
    }
    subprocess.run([python, str(PEERS / f"quantise_{library}.py"), json.dumps(asked)], check=True)


def outcomes(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/*/outcome.json"))


def read(directory: Path, only: list[str]) -> Iterator[Found]:
    for path in outcomes(directory):
        if only and path.parent.name not in only:
            continue
        outcome = json.loads(path.read_text())
        about = {"library": path.parts[-3], "checkpoint": path.parent.name, "model": outcome["model"]}
        if not (path.parent / "config.json").exists():
            yield Found(**about, outcome=f"not written: {outcome['error']}", right=True)
        elif "error" in outcome:
            yield Found(**about, outcome=f"not read by the library itself: {outcome['error']}", right=False)
        else:
            yield compared(path.parent, about, outcome["round_rows"])


def compared(directory: Path, about: dict[str, str], round_rows: bool) -> Found:
    expected = np.load(directory / "expected.npz")
    try:
        if round_rows:
            rounded, _ = answered(directory, expected["tokens"], 1)
            off = np.abs(rounded - expected["rounded"][:, :-1]).max() / expected["noise"]
            about["outcome"] = f"read; with rounded rows {off:.1f} times as far off as noise in the last bit makes"
        logprobs, answers = answered(
            directory, expected["tokens"], expected["answers"].shape[1], weights_only=round_rows
        )
    except ConfigError as error:
        return Found(**about | {"outcome": f"refused: {error}"}, right=about["checkpoint"] in REFUSED)
    except Exception as error:
        return Found(**about | {"outcome": f"{type(error).__name__}: {error}"}, right=False)
    error = float(np.abs(logprobs - expected["logprobs"][:, :-1]).max())
    same = bool((answers == expected["answers"]).all())
    right = error < MOST and same and not (round_rows and off > MOST_OF_NOISE)
    about.setdefault("outcome", "read")
    return Found(**about, right=right, error=error, same_answers=same, matrices=int(expected["quantised"]))


def answered(
    directory: Path, tokens: np.ndarray, output_len: int, *, weights_only: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Log probabilities of all tokens after each of the rows but the last, and greedy answers to the rows' beginnings."""
    overrides = {"hf_overrides": {"quantization_config": unrounded(directory)}} if weights_only else {}
    shapes = {"max_model_len": tokens.shape[1] + output_len, "max_num_seqs": len(tokens)}
    with LLM(model=str(directory), dtype="float32", max_logprobs=-1, **shapes, **overrides) as engine:
        scored = SamplingParams(max_tokens=1, prompt_logprobs=-1, detokenize=False)
        outputs = engine.generate([{"prompt_token_ids": row.tolist()} for row in tokens], scored, use_tqdm=False)
        logprobs = np.array([[by_token(position) for position in output.prompt_logprobs[1:]] for output in outputs])
        greedy = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": row[:PROMPT].tolist()} for row in tokens]
        answers = np.array([output.outputs[0].token_ids for output in engine.generate(prompts, greedy, use_tqdm=False)])
    return logprobs, answers


PROMPT = 8
"""Tokens, as in `peers/quantising.py`."""


def unrounded(directory: Path) -> dict[str, Any]:
    """The checkpoint's quantization_config, without rounding of activations."""
    config = json.loads((directory / "config.json").read_text())["quantization_config"]
    groups = {name: {**group, "input_activations": None} for name, group in config["config_groups"].items()}
    return {**config, "config_groups": groups}


def by_token(position: Any) -> list[float]:
    return [position[token].logprob for token in range(len(position))]


def record(options: argparse.Namespace, found: list[Found]) -> None:
    """What config.json says, and of one matrix the tensors of the first outputs and a product with what they stand for."""
    configs, arrays = {}, {}
    for one in found:
        name, directory = f"{one.library} {one.checkpoint}", options.directory / one.library / one.checkpoint
        configs[name] = json.loads((directory / "config.json").read_text())["quantization_config"]
        for key in ("meta", "dataset"):  # how it was made, on which texts
            configs[name].pop(key, None)
        sample = np.load(directory / "expected.npz")["sample"][:RECORDED].astype(np.float64)
        arrays[f"{name}/expected"] = sample @ np.random.default_rng(0).normal(size=(sample.shape[1], 2))
        checkpoint = open_checkpoint(directory)
        for path in checkpoint.tensors:
            if path.startswith(f"{SAMPLE}."):
                last = path.rpartition(".")[2]
                tensor = cut(np.asarray(checkpoint.view(path)), last)
                stored = tensor if tensor.dtype.isbuiltin == 1 else tensor.view(f"u{tensor.itemsize}")
                arrays[f"{name}/{last}/{tensor.dtype}"] = stored
    (options.record / "libraries.json").write_text(json.dumps(configs, indent=1, sort_keys=True) + "\n")
    np.savez_compressed(options.record / "libraries.npz", **arrays)


def cut(tensor: np.ndarray, last: str) -> np.ndarray:
    """The first outputs of a tensor of the matrix."""
    if last == "weight_shape":
        return np.array([RECORDED, tensor[1]], tensor.dtype)
    if last.endswith("g_idx") or tensor.size == 1:
        return tensor
    axis = 1 if last in ("qweight", "qzeros", "scales") else 0
    return tensor.take(range(max(1, tensor.shape[axis] * RECORDED // OUTPUTS)), axis)


def show(found: list[Found]) -> None:
    table = Table("library", "checkpoint", "model", "matrices", "largest error", "same answers", "")
    for one in found:
        error = "" if one.error is None else f"{one.error:.1e}"
        same = {None: "", True: "yes", False: "no"}[one.same_answers]
        table.add_row(
            one.library, one.checkpoint, one.model, str(one.matrices or ""), error, same,
            one.outcome if one.right else f"WRONG: {one.outcome}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 200).print(table)


if __name__ == "__main__":
    main()
