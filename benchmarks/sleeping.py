"""What sleeping and other weights take: seconds, bytes on the device and of the process, programs compiled.

    python -m benchmarks.sleeping [--layers 8] [--output results.json]

A random Llama of about 55 million parameters a layer. On a CPU the device's memory is the process's: level 1 keeps the weights
there as the host's, level 2 gives them back.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxengine import LLM, SamplingParams

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
PROMPT = {"prompt_token_ids": list(range(5, 60))}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def resident_bytes() -> int:
    """What the process has of the machine's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(layers: int) -> dict[str, Any]:
    """Every change, one after the other, with a short generation between."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}))
        llm = LLM(
            directory,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=1024,
            max_num_seqs=4,
            bucket_planner="explicit",
            buckets=("4x16", "4x1"),
        )
        rows: list[dict[str, Any]] = []

        def note(name: str, act: Callable[[], object]) -> None:
            begun = time.perf_counter()
            act()
            seconds = time.perf_counter() - begun
            on_device = sum({array.unsafe_buffer_pointer(): array.nbytes for array in jax.live_arrays()}.values())
            rows.append(
                {
                    "what": name,
                    "seconds": round(seconds, 3),
                    "device_bytes": on_device,
                    "process_bytes": resident_bytes(),
                }
            )
            print(
                f"{name:28} {seconds:7.2f} s {on_device / 2**20:9.1f} MiB {resident_bytes() / 2**20:9.1f} MiB",
                flush=True,
            )

        def said() -> tuple[int, ...]:
            [output] = llm.generate(PROMPT, GREEDY, use_tqdm=False)
            return output.outputs[0].token_ids

        before = said()
        note("awake", lambda: None)
        note("sleep(1)", llm.sleep)
        note("wake_up()", llm.wake_up)
        assert said() == before
        arrays = {path: np.asarray(array).copy() for path, array in llm.get_weights().items()}
        note("sleep(2)", lambda: llm.sleep(2))
        note("update_weights(NumPy)", lambda: llm.update_weights(arrays))
        note("wake_up(['kv_cache'])", lambda: llm.wake_up(["kv_cache"]))
        assert said() == before
        ours = {path: jax.device_put(array) for path, array in arrays.items()}
        note("(a trainer's arrays)", lambda: None)
        note("update_weights(JAX)", lambda: llm.update_weights(ours))
        assert said() == before
        compilations = llm.get_metrics()["num_compilations"]
        weight_bytes = sum(array.nbytes for array in arrays.values())
        llm.close()
    return {"layers": layers, "weight_bytes": weight_bytes, "compilations": compilations, "changes": rows}


def main() -> None:
    """Measure, and print or write what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    result = {"platform": jax.default_backend(), "cores": os.cpu_count(), **measure(given.layers)}
    text = json.dumps(result, indent=1)
    print(text) if given.output is None else given.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
