"""Pictures a second and seconds of sound a second on this machine's CPU: jaxengine, transformers and vLLM's CPU build. JSON out.

    python -m benchmarks.media_speed --modality image --tokenizer DIR --vllm-python VLLM_ENVIRONMENT/bin/python
    python -m benchmarks.media_speed --modality audio --dtype float32 --json FILE

Pictures: Qwen2.5-VL-3B's shapes with `--tower-layers` of its 32 and `--text-layers` of its 36 layers, the same for all engines. A
request is a picture and some words of text, and has one token of output: what a call with one request takes is the time to the
first token. `--tokenizer` has one with Qwen's ids. Sounds: Whisper-small whole; a request is a window of 30 s and has
`--output-len` tokens of output. Weights are random; no item is shown twice; preparing items counts.

Each engine is a process of its own (`benchmarks/peers/show_*.py`). In every round each of them answers the same requests, in an
order that turns; the others are stopped. Figures are medians of the rounds, by the clock and by the processor time of all
threads; those of torch wait for each other in a loop, which counts as processor time. The first round is not counted. An engine's
answers are compared with jaxengine's. `floor_processor_s` is what the products of all requests take at the speed of a product of
two large matrices by NumPy, measured in the same rounds. `--json FILE` keeps what the file has of another modality or type. On a
machine that others use too, processor times with `OMP_NUM_THREADS=1` say more.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.compare import Peer, turned
from jaxengine.bench import machine

QWEN: Mapping[str, Any] = {
    "text_config": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128000,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "tie_word_embeddings": True,
    },
    "vision_config": {
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "tie_word_embeddings": True,
}
WHISPER: Mapping[str, Any] = {
    "vocab_size": 51865,
    "d_model": 768,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
    "bos_token_id": 50257,
    "eos_token_id": 50257,
    "pad_token_id": 50257,
    "decoder_start_token_id": 50258,
}
SPECIAL = {
    50257: "<|endoftext|>",
    50258: "<|startoftranscript|>",
    50259: "<|en|>",
    50358: "<|translate|>",
    50359: "<|transcribe|>",
    50360: "<|startoflm|>",
    50361: "<|startofprev|>",
    50362: "<|nospeech|>",
    50363: "<|notimestamps|>",
}
PROMPTS = {
    "image": [151644, 872, 198, 151652, 151655, 151653, *range(1000, 1016), 151645, 198, 151644, 77091, 198],
    "audio": [50258, 50259, 50359, 50363],
}
SIDE, SECONDS = 448, 30
MOST_PIXELS = 1280 * 28 * 28
"""Of the largest picture that the model's processor leaves: transformers' default."""
PEERS = ("jaxengine", "transformers", "vllm")


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # peers are ended, too
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        make = {"image": qwen, "audio": whisper}[options.modality]
        report = {"machine": machine.describe(), **make(Path(folder), options), **measured(Path(folder), options)}
    report["omp_num_threads"] = os.environ.get("OMP_NUM_THREADS", "not set")
    report["load_average_1m_after"] = machine.describe()["load_average_1m"]
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    kept[f"{options.modality} {options.dtype}"] = report
    text = json.dumps({"benchmark": "media_speed", **kept}, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modality", choices=PROMPTS, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4], help="so many at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tower-layers", type=int, default=8)
    parser.add_argument("--text-layers", type=int, default=4)
    parser.add_argument("--output-len", type=int, default=64, help="tokens for each sound")
    parser.add_argument("--tokenizer", type=Path, help="directory of one with Qwen's ids")
    parser.add_argument("--vllm-python", help="interpreter of an environment that has vLLM")
    parser.add_argument("--engines", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--folder", type=Path, help="where the checkpoint is made, of some gigabytes")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args()


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What the engines took, by the number of requests at once."""
    own = {"limit_mm_per_prompt": {"image": 1, "video": 0}} if options.modality == "image" else {}
    lengths = {"max_model_len": 448, "max_num_seqs": max(options.requests)}
    settings = {"model": str(folder), "modality": options.modality, "options": {"dtype": options.dtype} | lengths | own}
    output_len = 1 if options.modality == "image" else options.output_len
    question = {
        "prompt": PROMPTS[options.modality],
        "size": SIDE if options.modality == "image" else SECONDS,
        "output_len": output_len,
    }
    seeds = iter(range(1 << 30))
    runs: dict[int, list[dict[str, dict[str, Any]]]] = {count: [] for count in options.requests}
    speeds = []
    with ExitStack() as stack, tqdm(total=len(runs) * (options.rounds + 1), unit="call") as progress:
        peers = []
        for name in options.engines:
            progress.set_description(f"{name}: loading")
            python = options.vllm_python if name == "vllm" else sys.executable
            if python:
                peers.append(stack.enter_context(Peer(name, f"show_{name}", python, settings)))
        for turn in range(-1, options.rounds):
            for count, found in runs.items():
                items = [next(seeds) for _ in range(count)]
                answers = {}
                for peer in turned(peers, turn):
                    progress.set_description(f"{peer.name}: {count}")
                    answers[peer.name] = peer.ask({**question, "items": items})
                if turn >= 0:
                    found.append(answers)
                progress.update()
            if turn >= 0:
                speeds.append(product_speed())
    work = (seeing_flops if options.modality == "image" else hearing_flops)(options)
    return {
        "output_tokens": output_len,
        "rounds": options.rounds,
        "engines": {peer.name: peer.about for peer in peers},
        "gflop_a_request": round(work / 1e9, 1),
        "float32_product_gflop_per_processor_s": round(median(speeds) / 1e9, 1),
        "requests_at_once": {
            count: summary(found, count, options, work / median(speeds)) for count, found in runs.items()
        },
    }


def summary(
    found: Sequence[Mapping[str, Mapping[str, Any]]], count: int, options: argparse.Namespace, floor: float
) -> dict[str, Any]:
    """Of each engine."""
    rate, each = ("pictures_per_s", 1) if options.modality == "image" else ("sound_s_per_s", SECONDS)
    ours = [answers["jaxengine"] for answers in found] if "jaxengine" in found[0] else None
    told: dict[str, Any] = {}
    for name in found[0]:
        mine = [answers[name] for answers in found]
        seconds, used = (median(one[key] for one in mine) for key in ("seconds", "processor_s"))
        told[name] = {
            "seconds": [round(one["seconds"], 3) for one in mine],
            "processor_s": [round(one["processor_s"], 3) for one in mine],
            rate: round(each * count / seconds, 3),
            f"{rate.removesuffix('_per_s')}_per_processor_s": round(each * count / used, 3),
        }
        if options.modality == "image" and count == 1:
            told[name]["first_token_s"] = round(seconds, 3)
        if ours and name != "jaxengine":
            pairs = [
                (a, b) for x, y in zip(ours, mine, strict=True) for a, b in zip(x["tokens"], y["tokens"], strict=True)
            ]
            told[name]["answers_as_ours"] = f"{sum(a == b for a, b in pairs)} of {len(pairs)}"
            told[name]["ours_by_the_clock"] = ratio(ours, mine, "seconds")
            told[name]["ours_by_processor_time"] = ratio(ours, mine, "processor_s")
    return {"floor_processor_s": round(floor * count, 3), **told}


def ratio(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], key: str) -> float:
    """How many times as fast jaxengine is: the median of the rounds' ratios."""
    return round(median(b[key] / a[key] for a, b in zip(ours, theirs, strict=True)), 2)


def qwen(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A checkpoint of Qwen2.5-VL; what a reader needs to know of it."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {**QWEN["text_config"], "num_hidden_layers": options.text_layers}
    whole = [block for block in QWEN["vision_config"]["fullatt_block_indexes"] if block < options.tower_layers]
    vision = {**QWEN["vision_config"], "depth": options.tower_layers, "fullatt_block_indexes": whole}
    config = Qwen2_5_VLConfig(**{**QWEN, "text_config": text, "vision_config": vision})
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((options.tokenizer / file).read_bytes())
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "min_pixels": 56 * 56,
        "max_pixels": MOST_PIXELS,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return {
        "model": f"Qwen2.5-VL-3B's shapes, {options.tower_layers} of 32 layers of the tower, {options.text_layers} of 36 of text",
        "request": f"a picture of {SIDE} x {SIDE} ({(SIDE // 14) ** 2} patches), {len(PROMPTS['image']) - 1} tokens of text",
    }


def whisper(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A checkpoint of Whisper-small; what a reader needs to know of it."""
    import tokenizers
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    torch.manual_seed(0)
    WhisperForConditionalGeneration(WhisperConfig(**WHISPER)).save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *(f"w{number}" for number in range(len(alphabet), WHISPER["vocab_size"]))]
    vocabulary = {SPECIAL.get(number, name): number for number, name in enumerate(names)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(
        [tokenizers.AddedToken(name, special=True, normalized=False) for name in SPECIAL.values()]
    )
    backend.save(str(folder / "tokenizer.json"))
    marks = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer", **marks}))
    return {
        "model": "Whisper-small's shapes, all layers",
        "request": f"{SECONDS} s of sound, {len(PROMPTS['audio'])} tokens before the text",
    }


def seeing_flops(options: argparse.Namespace) -> float:
    """Of the products of a request with a picture."""
    text, vision = QWEN["text_config"], QWEN["vision_config"]
    patches, width = (SIDE // 14) ** 2, vision["hidden_size"]
    whole = sum(block < options.tower_layers for block in vision["fullatt_block_indexes"])
    seen = 64 * (options.tower_layers - whole) + patches * whole  # windows are of 8 x 8 patches
    layers = options.tower_layers * (4 * width**2 + 3 * width * vision["intermediate_size"]) + 2 * width * seen
    merged = 4 * width
    tower = patches * (3 * 2 * 14 * 14 * width + layers) + patches // 4 * merged * (merged + vision["out_hidden_size"])
    tokens, hidden = patches // 4 + len(PROMPTS["image"]) - 1, text["hidden_size"]
    keys = hidden // text["num_attention_heads"] * text["num_key_value_heads"]
    layer = 2 * hidden**2 + 2 * hidden * keys + 3 * hidden * text["intermediate_size"] + hidden * tokens
    return 2.0 * (tower + tokens * options.text_layers * layer + hidden * text["vocab_size"])


def hearing_flops(options: argparse.Namespace) -> float:
    """Of the products of a request with a sound."""
    width, inner, places, mels = WHISPER["d_model"], WHISPER["encoder_ffn_dim"], 50 * SECONDS, 80
    convolutions = 3 * width * (2 * mels + width)
    encoder = WHISPER["encoder_layers"] * (4 * width**2 + 2 * width * inner + 2 * width * places)
    tokens, crossing = len(PROMPTS["audio"]) + options.output_len - 1, WHISPER["decoder_layers"] * 2 * width**2
    layer = 6 * width**2 + 2 * width * inner + 2 * width * places + width * tokens
    decoder = tokens * WHISPER["decoder_layers"] * layer + options.output_len * width * WHISPER["vocab_size"]
    return 2.0 * (places * (convolutions + encoder + crossing) + decoder)


def product_speed() -> float:
    """Operations in a processor second of a product of two large matrices in float32 by NumPy: the best of five."""
    a = np.ones((2048, 2048), np.float32)
    seconds = []
    for _ in range(5):
        used = time.process_time()
        a @ a
        seconds.append(time.process_time() - used)
    return 2 * 2048**3 / min(seconds)


if __name__ == "__main__":
    main()
