"""What contexts of a million tokens cost: steps of short rows beside them, and prompts as long as that. JSON on standard output.

A decode step of 64 rows of some 20 tokens, of a tiny model of 6 layers on this CPU, with page tables for 131,072 tokens
as the limit, for 1,048,576 with the usual ones for short rows, and with the longest for all (`USUAL_CONTEXT`); medians of 50.
Then one prompt through `LLM`: of a layer that sees everything, or of one with a window of 512.

python -m benchmarks.long_context --prompt 200000 --window-prompt 1048000
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxengine import LLM, SamplingParams
from jaxengine.bench import machine
from jaxengine.contract.batch import Batch, SamplingSpec, SlotState
from jaxengine.contract.rows import Row, Rows, Sample
from jaxengine.device.runtime import space as runtime_space
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.held_weights import HeldWeights
from jaxengine.device.runtime.launcher import allocate_state
from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.runtime.runner import ModelRunner
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress

ROWS, STEPS, UNCOUNTED = 64, 60, 10
MILLION = 1 << 20
TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 256,
    "max_position_embeddings": MILLION,
    "rope_theta": 5e6,
    "tie_word_embeddings": True,
    "num_key_value_heads": 1,
}
SIX_LAYERS = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "head_dim": 32,
}
ONE_LAYER = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8}
WINDOW = {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--prompt", type=int, default=200_000, help="tokens of the prompt that sees everything; 0: none"
    )
    parser.add_argument("--window-prompt", type=int, default=1_048_000, help="tokens of the one with a window; 0: none")
    options = parser.parse_args()
    usual = runtime_space.USUAL_CONTEXT
    ways = {
        "limit 131,072": (usual, usual),
        "limit 1,048,576": (MILLION, usual),
        "long tables for all": (MILLION, MILLION),
    }
    found: dict[str, Any] = {"decode_step_ms": {way: round(short_step(*given), 2) for way, given in ways.items()}}
    for name, length, changes in (("full", options.prompt, {}), ("window", options.window_prompt, WINDOW)):
        if length:
            found[f"prompt_{name}"] = {"tokens": length, "seconds": round(long_prompt(length, changes), 1)}
    print(json.dumps({**found, "machine": machine.describe()}))


def short_step(limit: int, usual: int) -> float:
    """Milliseconds of a decode step of short rows."""
    runtime_space.USUAL_CONTEXT = usual
    options = {"max_model_len": limit, "max_num_seqs": ROWS, "max_num_batched_tokens": ROWS, "dtype": "float32"}
    options |= {"bucket_planner": "explicit", "buckets": (f"{ROWS}x1",), "kv_cache_memory_bytes": 2 << 30}
    with tempfile.TemporaryDirectory() as directory:
        config = EngineConfig.from_options(model=_model(directory, SIX_LAYERS), **options, load_format="dummy")
        space = plan_space(prepare(config, Progress())).space
    numbers = np.random.default_rng(0)
    parameters = tuple(
        jax.device_put(numbers.normal(scale=0.1, size=struct.shape).astype(struct.dtype))
        for struct in space.parameters.values()
    )
    needed = ("forward", "write settings", f"sample {ROWS} greedy")
    programs = [one for one in all_programs(space) if one.name.startswith(needed) and "wide" not in one.name]
    runner = ModelRunner(
        space, Executables.compile(programs, threads=2)[0], HeldWeights(space, parameters), *allocate_state(space)
    )
    slots = range(1, ROWS + 1)
    begin = Batch(
        0,
        space.grid.buckets[0],
        Rows([]),
        begin=tuple(SlotState(slot, SamplingSpec(temperature=0.0, seed=0)) for slot in slots),
        tables=tuple((slot, 8 * slot + 1 + np.arange(8, dtype=np.int32)[None]) for slot in slots),
    )
    seconds = []
    for step in range(STEPS):
        rows = Rows([Row(slot, None, 1, 10 + step, Sample()) for slot in slots])
        batch = dataclasses.replace(begin if step == 0 else Batch(step, begin.bucket, rows), number=step, rows=rows)
        begun = time.perf_counter()
        runner.launch(batch).wait()
        seconds.append(time.perf_counter() - begun)
    runner.close()
    return 1e3 * statistics.median(seconds[UNCOUNTED:])


def long_prompt(length: int, changes: dict[str, Any]) -> float:
    """Seconds from a prompt to its eighth token, programs being there."""
    with tempfile.TemporaryDirectory() as directory:
        model = _model(directory, {**ONE_LAYER, **changes})
        llm = LLM(
            model, load_format="dummy", skip_tokenizer_init=True, max_model_len=MILLION, max_num_seqs=4, dtype="float32"
        )
    ids = np.random.default_rng(0).integers(3, 256, length).tolist()
    begun = time.perf_counter()
    llm.generate([{"prompt_token_ids": ids}], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    return time.perf_counter() - begun


def _model(directory: str, sizes: dict[str, Any]) -> str:
    (Path(directory) / "config.json").write_text(json.dumps({**TINY, **sizes}))
    return directory


if __name__ == "__main__":
    main()
