"""Texts a second that are embedded on this machine's CPU, beside plain torch doing what sentence-transformers does.

BGE's shapes with random weights in float32; token ids with the lengths of a text's lines (words and two more, at most 510). Both
are given the same ids in batches of each size, in turns; figures are medians of the rounds. torch sorts a batch by length, pads
it to its longest text, 32 together at the most, and takes the first token's hidden state scaled to length one, as
sentence-transformers does. On a machine that others use too, the figures by processor time say more, with `OMP_NUM_THREADS=1` so
that torch's threads do not wait for each other in a loop. With `--vllm PYTHON`, that of an environment with vLLM's CPU build, it
is a third (`embeddings_vllm.py`), in a process of its own. The first call of each is not timed.

python benchmarks/embeddings.py --text wikitext-2-test.txt.gz --shapes small base --batches 1 8 64 --rounds 7
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tqdm import tqdm

from jaxengine import LLM
from jaxengine.bench import machine

BERT = {"architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522, "max_position_embeddings": 512}
SHAPES: dict[str, dict[str, int]] = {
    "small": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 12},
    "base": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
}
MOST_TOGETHER = 32
Ids = list[int]
Embed = Callable[[Sequence[Ids]], np.ndarray]
Timed = Callable[[Sequence[Ids], int], tuple[tuple[float, float], np.ndarray]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="whose lines' lengths are taken; may be gzipped")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--texts", type=int, default=64, help="texts of a round")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--vllm", help="a Python that has vLLM")
    arguments = parser.parse_args()
    lengths = line_lengths(arguments.text)
    found = [measure(shape, lengths, arguments) for shape in tqdm(arguments.shapes)]
    print(json.dumps({"machine": machine.describe(), "lengths": summary(lengths), "shapes": found}, indent=1))


def line_lengths(path: Path) -> list[int]:
    """Words and two more of each line that has some, at most 510."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [min(510, 2 + len(line.split())) for line in file if line.strip()]


def summary(lengths: Sequence[int]) -> dict[str, float]:
    """What a reader wants to know of lengths."""
    low, middle, high = np.percentile(lengths, (10, 50, 90)).tolist()
    return {"lines": len(lengths), "p10": low, "p50": middle, "p90": high, "mean": round(statistics.mean(lengths), 1)}


def measure(shape: str, lengths: Sequence[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """One model, embedded by both."""
    numbers = np.random.default_rng(0)
    chosen = numbers.choice(np.asarray(lengths), arguments.texts)
    texts = [numbers.integers(1000, BERT["vocab_size"], length).tolist() for length in chosen]
    with tempfile.TemporaryDirectory() as folder:
        directory = checkpoint(Path(folder), SHAPES[shape])
        ours, close = by_jaxengine(directory, arguments.dtype)
        peers: dict[str, Timed] = {"jaxengine": timing(ours), "torch": timing(by_torch(directory))}
        if arguments.vllm:
            peers["vllm"] = by_vllm(directory, arguments.vllm, arguments.dtype)
        found = {name: peer(texts, len(texts))[1] for name, peer in peers.items()}
        worst = {name: float(np.abs(found["jaxengine"] - found[name]).max()) for name in peers if name != "jaxengine"}
        by_batch = {}
        for size in arguments.batches:
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
            for turn in range(arguments.rounds):
                for name, peer in sorted(peers.items(), reverse=bool(turn % 2)):
                    seconds[name].append(peer(texts, size)[0])
            by_batch[size] = rates(seconds, len(texts))
        close()
    return {"shape": shape, "largest difference": worst, "texts per second by batch": by_batch}


def rates(seconds: Mapping[str, Sequence[tuple[float, float]]], count: int) -> dict[str, Any]:
    """Texts a second by the clock and by the processors' time, and how many times as many as each of the others."""
    found: dict[str, Any] = {}
    for at, by in enumerate(("by the clock", "by processor time")):
        of = {name: round(count / statistics.median(turn[at] for turn in turns), 2) for name, turns in seconds.items()}
        ratios = {f"times {name}": round(of["jaxengine"] / of[name], 2) for name in of if name != "jaxengine"}
        found[by] = {**of, **ratios}
    return found


def timing(embed: Embed) -> Timed:
    """Seconds for all texts, so many at a time: by the clock, and of all threads of this process; and what came out."""

    def run(texts: Sequence[Ids], size: int) -> tuple[tuple[float, float], np.ndarray]:
        begun, used = time.perf_counter(), time.process_time()
        found = [embed(texts[begin : begin + size]) for begin in range(0, len(texts), size)]
        return (time.perf_counter() - begun, time.process_time() - used), np.concatenate(found)

    return run


def by_vllm(directory: Path, python: str, dtype: str) -> Timed:
    """vLLM in a process of its own, whose environment has none of this one's."""
    tokenizer(directory)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "JAX_PLATFORMS")}
    command = [python, "-P", str(Path(__file__).with_name("embeddings_vllm.py")), str(directory), dtype]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answered = process.stdin, process.stdout
    print("vllm", json.loads(answered.readline())["vllm"], file=sys.stderr)

    def run(texts: Sequence[Ids], size: int) -> tuple[tuple[float, float], np.ndarray]:
        batches = [list(texts[begin : begin + size]) for begin in range(0, len(texts), size)]
        asked.write(json.dumps(batches) + "\n")
        asked.flush()
        answer = json.loads(answered.readline())
        by_clock, used = answer["seconds"]
        return (by_clock, used), np.array(answer["embeddings"], np.float32)

    return run


def tokenizer(directory: Path) -> None:
    """A tokenizer, which vLLM does not do without."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    words = [*special.values(), *(f"w{number}" for number in range(BERT["vocab_size"] - len(special)))]
    model = WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    Tokenizer(model).save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def checkpoint(directory: Path, shape: dict[str, int]) -> Path:
    """A checkpoint of random weights, as transformers saves it."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = {name: value for name, value in BERT.items() if name != "model_type"}
    model = BertModel(BertConfig(**config, **shape), add_pooling_layer=False)
    save_file({name: tensor.numpy() for name, tensor in model.state_dict().items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**BERT, **shape}))
    return directory


def by_jaxengine(directory: Path, dtype: str) -> tuple[Embed, Callable[[], None]]:
    """The engine as it starts by default, and how to close it."""
    llm = LLM(str(directory), skip_tokenizer_init=True, dtype=dtype)

    def embed(texts: Sequence[Ids]) -> np.ndarray:
        return np.array([output.outputs.data for output in llm.encode(list(texts), use_tqdm=False)])

    return embed, llm.close


def by_torch(directory: Path) -> Embed:
    """What sentence-transformers does with ids."""
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(directory, add_pooling_layer=False, attn_implementation="sdpa").eval()

    @torch.inference_mode()
    def embed(texts: Sequence[Ids]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        found = np.empty((len(texts), model.config.hidden_size), np.float32)
        for begin in range(0, len(order), MOST_TOGETHER):
            some = order[begin : begin + MOST_TOGETHER]
            longest = len(texts[some[0]])
            ids, mask = (torch.zeros(len(some), longest, dtype=torch.long) for _ in range(2))
            for row, number in enumerate(some):
                ids[row, : len(texts[number])] = torch.tensor(texts[number])
                mask[row, : len(texts[number])] = 1
            first = model(ids, attention_mask=mask).last_hidden_state[:, 0]
            found[some] = torch.nn.functional.normalize(first, dim=1).numpy()
        return found

    return embed


if __name__ == "__main__":
    main()
