"""GPTQ, as AutoGPTQ, GPTQModel and Optimum write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.quantization.method import Method
from jaxengine.device.models.config.quantization.modules import EVERY, Modules, Quantization
from jaxengine.device.models.config.quantization.values import group_size, head_is_stored, left_plain, not_built, only
from jaxengine.device.weights.formats import Format
from jaxengine.device.weights.formats.gptq import Gptq


def _read(reader: ConfigReader) -> Quantization:
    bits = reader.required("bits", int)
    only("bits", bits, 4, 8)
    group = reader.optional("group_size", 128, int)
    versions = [reader.nullable(key, None, str) for key in ("checkpoint_format", "format")]  # the same in both
    version = next(filter(None, versions), "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise not_built(f"checkpoint_format {version!r}", "'gptq' and 'gptq_v2' are")
    usual: dict[str, Any] = {
        "bits": bits,
        "group_size": group,
        "sym": reader.optional("sym", True, bool),
        "desc_act": reader.optional("desc_act", False, bool),
    }

    def made(values: Mapping[str, Any]) -> Gptq:
        only("bits", values["bits"], 4, 8)
        return Gptq(
            bits=values["bits"],
            group=group_size(values["group_size"]),
            symmetric=values["sym"],
            act_order=values["desc_act"],
            zero_offset=1 if version == "gptq" else 0,
        )

    rows: list[tuple[Modules, Format | None]] = []
    for pattern, changes in (reader.raw("dynamic") or {}).items():
        modules = Modules(patterns=(re.sub(r"^[+-]:", "", pattern),))
        known = {key: value for key, value in changes.items() if key in usual}
        rows.append((modules, None if pattern.startswith("-:") else made({**usual, **known})))
    inside = reader.raw("modules_in_block_to_quantize")
    every = EVERY if not inside else Modules(parts=tuple(name for names in inside for name in names))
    head = head_is_stored(reader)
    if head and inside:
        every = Modules(parts=(*every.parts, "lm_head"))
    return Quantization("gptq", (*rows, (every, made(usual))), left_plain(reader), head)


METHOD = Method(
    _read,
    ignored=(
        *("damp_percent", "damp_auto_increment", "true_sequential", "static_groups", "dataset", "tokenizer", "meta"),
        *("use_cuda_fp16", "model_seqlen", "block_name_to_quantize", "module_name_preceding_first_block", "batch_size"),
        *("pad_token_id", "disable_exllama", "use_exllama", "max_input_length", "exllama_config", "backend", "mse"),
        *("cache_block_outputs", "act_group_aware", "pack_dtype", "model_name_or_path", "model_file_base_name"),
        *("method", "quantizer", "is_marlin_format", "parallel_packing", "pack_impl", "adapter", "rotation", "hyb_act"),
    ),
)
