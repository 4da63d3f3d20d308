"""Large models at full size, from their configuration alone: do the largest programs compile, and what do they move?

Neither weights nor devices are needed: the largest forward program, and the one that decodes as many sequences as run at once,
are compiled by the target's own compiler, two by two. For each are given its memory, the compiler's cycles (loops counted once,
Pallas kernels not at all) and every instruction that moves an array of the shape of a pool of pages, of states, or of a large
weight, counted: no program should have any. JSON to standard output, a line a model, and progress beside it.

With libtpu 0.0.42.1, each as it was that hour: thousand cycles and MB of temporaries of 2,048 tokens, and of 256 sequences that
decode; minutes of one core for both, on a machine with other work; tokens of cache beside weights, states and what workspace is
expected:

    model, target              2,048 tokens      256 decode       minutes   tokens that fit
    Mixtral-8x7B, v6e-8          15,309,  106      3,602,   50        3    1,109,056
    gpt-oss-20b, v6e-1          178,586,  487     11,397,  108       16      576,515
    gpt-oss-120b, v6e-4         220,729,  567     14,195,  157       18    1,284,102
    Qwen3-30B-A3B, v6e-4         25,891,  183      6,859,   72        3      584,192
    Gemma-3-27B, v6e-4          107,594,  329     22,527,  262        7      688,211
    Llama-4-Scout, v6e-8         38,325,  344      7,484,  165       11      372,345
    Granite-4-H-small, v6e-4     48,433,  600     11,899,  149        5      822,528
    Nemotron-H-8B, v6e-4         31,555,  191      7,996,   83        4    2,097,152
    Qwen3-Next-80B-A3B, v6e-8    35,552,  265     12,168,  124        4      582,144
    DeepSeek-V3, v6e-64          87,326,  959     19,088,  252        3      209,600

None moves a pool of pages, states or a weight, but that of Granite inputs of convolutions of 128 channels are laid out anew once
a step (7 MB). gpt-oss-20b copied its embeddings in every step (1.2 GB; 22,986 thousand cycles of a decode step), and Granite
the inputs of all sequences in every layer (80,682) until this showed it.

python -m benchmarks.full_size --configs ../shared/data/configs --models Mixtral-8x7B gpt-oss-20b
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from buckets import Bucket
from jaxengine.bench import machine
from jaxengine.device.runtime import memory
from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import find_target
from jaxengine.options.config import EngineConfig
from jaxengine.startup.log import show_log
from jaxengine.startup.pool import plan_space, sequence_pages
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from pallas_kernels.check import MOVES
from xla_cache import compile_programs
from xla_cache.cycles import estimated_cycles
from xla_cache.record import Memory

LARGE_BYTES = 8 << 20
"""Of a weight whose moves are looked for. Activations of a large step may have the shape of a smaller one."""

GRANITE_4_H_SMALL: Mapping[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "dtype": "bfloat16",
    "vocab_size": 100352,
    "hidden_size": 4096,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 256,
    "max_position_embeddings": 131072,
    "position_embedding_type": "nope",
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12,
    "logits_scaling": 16,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 100257,
    "eos_token_id": 100257,
    "pad_token_id": 100256,
}
NEMOTRON_H_8B: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "num_attention_heads": 32,
    "mamba_num_heads": 128,
    "ssm_state_size": 128,
}
"""Both from the published descriptions of the models; the latter over the configuration of its larger sibling."""


@dataclass(frozen=True)
class Subject:
    """A model on a target: a file below `--configs`, the name of a class of transformers whose defaults are the model, or values.

    `changes` go over a file's values.
    """

    config: str | Mapping[str, Any]
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)


SUBJECTS = {
    "Mixtral-8x7B": Subject("hf/mistralai--Mixtral-8x7B-v0.1.json", "v6e-8"),
    "gpt-oss-20b": Subject("hf/openai--gpt-oss-20b.json", "v6e-1"),
    "Qwen3-30B-A3B": Subject("hf/Qwen--Qwen3-30B-A3B.json", "v6e-4"),
    "gpt-oss-120b": Subject("hf/openai--gpt-oss-120b.json", "v6e-4"),
    "Granite-4-H-small": Subject(GRANITE_4_H_SMALL, "v6e-4"),
    "Nemotron-H-8B": Subject("hf/nvidia--Nemotron-H-56B-Base-8K.json", "v6e-4", changes=NEMOTRON_H_8B),
    "Gemma-3-27B": Subject("maxtext/gemma3_27b.json", "v6e-4"),
    "Qwen3-Next-80B-A3B": Subject("Qwen3NextConfig", "v6e-8"),
    "Llama-4-Scout": Subject("hf/meta-llama--Llama-4-Scout-17B-16E-Instruct.json", "v6e-8", {"max_model_len": 131072}),
    "DeepSeek-V3": Subject("hf/deepseek-ai--DeepSeek-V3.json", "v6e-64"),
    "DeepSeek-V3.2": Subject("hf/deepseek-ai--DeepSeek-V3.2.json", "v6e-64", {"max_model_len": 163840}),
    "GLM-5": Subject("hf/zai-org--GLM-5.json", "v6e-64", {"max_model_len": 202752}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, required=True, help="directory with published configurations")
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--target", help="in place of each model's own")
    parser.add_argument("--threads", type=int, default=2, help="programs compiled at once")
    arguments = parser.parse_args()
    show_log()
    for name in arguments.models:
        found = measure(SUBJECTS[name], arguments.configs, arguments.target, arguments.threads)
        print(json.dumps({"model": name, **found, "machine": machine.describe()}), flush=True)


def measure(subject: Subject, configs: Path, target_name: str | None, threads: int) -> dict[str, Any]:
    """Plan, and compile two programs."""
    target = find_target(target_name or subject.target)
    progress = Progress()
    with tempfile.TemporaryDirectory() as nowhere:
        path = Path(nowhere) / "config.json"
        path.write_text(json.dumps(_values(subject, configs)))
        options = {"tensor_parallel_size": target.num_devices, **subject.options}
        config = EngineConfig.from_options(model=str(path), **options)
        prepared = prepare(config, progress, target=target)
    model, limits, planned = prepared.model, prepared.limits, plan_space(prepared, measure=False)
    space = planned.space
    chosen = {
        program.name: (program, bucket.tokens)
        for bucket in chosen_buckets(space, limits.max_num_seqs)
        for program in forward_programs(space, bucket)
    }
    kept = {f"pool {shape}": shape for shape in {memory.shard_shape(struct) for struct in space.kv_pages}}
    kept |= {f"states {shape}": shape for shape in {memory.shard_shape(s) for s in jax.tree.leaves(space.states)}}
    kept |= {
        f"weight {memory.shard_shape(struct)}": memory.shard_shape(struct)
        for struct in model.parameters.values()
        if memory.shard_bytes(struct) >= LARGE_BYTES
    }
    measured: dict[str, Any] = {}

    def on_done(record: Any, compiled: Any) -> None:
        cycles = estimated_cycles(compiled)
        found = Memory.of(compiled)
        measured[record.name] = {
            "compile_wall_s": round(record.compile_s, 1),
            "temp_bytes": found.temp,
            "code_bytes": found.code,
            "alias_bytes": found.alias,
            "kilocycles": None if cycles is None else cycles // 1000,
            "moves": moves(compiled.as_text(), kept, tokens=chosen[record.name][1]),
        }
        progress.say("compile", f"{record.name}: {json.dumps(measured[record.name])}")

    begun = time.perf_counter()
    compile_programs([program for program, _ in chosen.values()], threads=threads, on_done=on_done)
    return {
        "target": target.name,
        "parameters": model.num_parameters,
        "precision": model.precision,
        "weight_bytes": planned.budget.weight_bytes,
        "state_bytes": planned.budget.slot_bytes,
        "expected_workspace_bytes": planned.budget.workspace_bytes,
        "max_model_len": planned.limits.max_model_len,
        "kv_tokens": sequence_pages(model, planned.limits).tokens_held(space.num_pages),
        "wall_s": round(time.perf_counter() - begun),
        "programs": measured,
    }


def chosen_buckets(space: ProgramSpace, num_seqs: int) -> list[Bucket]:
    """The largest, and the smallest in which all sequences decode at once."""
    decode = min(
        (bucket for bucket in space.grid.buckets if bucket.batch >= min(num_seqs, space.grid.max_rows)),
        key=lambda bucket: bucket.tokens,
    )
    return list(dict.fromkeys((space.grid.buckets[0], decode)))


def moves(hlo: str, kept: Mapping[str, tuple[int, ...]], *, tokens: int) -> dict[str, int]:
    """How many instructions move or convert an array with the extents of one that is kept, in whatever order, by name and kind.

    A copy into the chip's own memory (`S(1)`) is a prefetch. Of weights conversions do not count, as a product may read converted
    numbers, nor do arrays that may be activations: with as many rows as the step has `tokens`.
    """
    found: Counter[str] = Counter()
    extents = {name: sorted(extent for extent in shape if extent > 1) for name, shape in kept.items()}
    for line in hlo.splitlines():
        match = re.search(r"= \(?\w+\[([\d,]+)\](\S*) ([\w-]+)\(", line)
        if match is None or match[3] not in MOVES or "S(1)" in match[2]:
            continue
        shape = sorted(extent for extent in map(int, match[1].split(",")) if extent > 1)
        for name, looked_for in extents.items():
            if name.startswith("weight") and (match[3] in ("convert", "gather") or tokens in shape):
                continue
            if shape == looked_for or (name.startswith("pool") and math.prod(shape) >= math.prod(looked_for)):
                found[f"{match[3]} of {name}"] += 1
    return dict(found)


def _values(subject: Subject, configs: Path) -> dict[str, Any]:
    """The contents of config.json. Keys with an underscore in front are a converter's own."""
    if not isinstance(subject.config, str):
        values = subject.config
    elif subject.config.endswith(".json"):
        values = json.loads((configs / subject.config).read_text())
    else:
        import transformers

        architecture = subject.config.replace("Config", "ForCausalLM")
        values = {
            **getattr(transformers, subject.config)().to_dict(),
            "architectures": [architecture],
            "dtype": "bfloat16",
        }
    return {name: value for name, value in {**values, **subject.changes}.items() if not name.startswith("_")}


if __name__ == "__main__":
    main()
