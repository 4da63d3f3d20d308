"""AWQ, as AutoAWQ and GPTQModel write it."""

from __future__ import annotations

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.quantization.method import Method
from jaxengine.device.models.config.quantization.modules import EVERY, Quantization
from jaxengine.device.models.config.quantization.values import group_size, head_is_stored, left_plain, not_built, only
from jaxengine.device.weights.formats.awq import Awq


def _read(reader: ConfigReader) -> Quantization:
    bits = reader.optional("w_bit", reader.optional("bits", 4, int), int)
    only("bits", bits, 4)
    group = reader.optional("q_group_size", reader.optional("group_size", 128, int), int)
    for key in ("version", "checkpoint_format", "format"):
        version = reader.nullable(key, None, str) or "gemm"
        if version.lower() not in ("gemm", "exllama"):
            raise not_built(f"{key} {version!r}", "'gemm' is")
    return Quantization("awq", ((EVERY, Awq(group_size(group))),), left_plain(reader), head_is_stored(reader))


METHOD = Method(
    _read,
    ignored=(
        *("zero_point", "method"),  # tensors of zeros are there in any case
        *("backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config", "desc_act", "sym"),
        *("pack_dtype", "meta", "damp_percent", "true_sequential", "dataset", "tokenizer", "act_group_aware"),
    ),
)
