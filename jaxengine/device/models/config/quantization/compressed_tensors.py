"""compressed-tensors, as llm-compressor writes it: groups of modules, each stored in its own way."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.quantization.method import Method
from jaxengine.device.models.config.quantization.modules import EVERY, Modules, Quantization
from jaxengine.device.models.config.quantization.values import (
    FLOAT8,
    MADE,
    WHERE,
    block_size,
    log_weights_only,
    module_names,
    not_built,
)
from jaxengine.device.weights.formats import Format, nvfp4
from jaxengine.device.weights.formats.eight_bit import EightBit
from jaxengine.device.weights.formats.packed import Packed
from jaxengine.errors import ConfigError


def _read(reader: ConfigReader) -> Quantization:
    sparsity = reader.raw("sparsity_config")
    if sparsity and sparsity.get("format", "dense") != "dense":
        raise not_built(f"sparsity_config {sparsity.get('format')!r}", "dense matrices are")
    if reader.raw("transform_config"):
        raise not_built("transform_config (matrices that are turned)", "matrices as they are")
    status = reader.nullable("quantization_status", None, str) or "compressed"
    if status != "compressed":
        raise not_built(f"quantization_status {status!r}", "'compressed' is")
    usual = reader.nullable("format", None, str)
    rows: list[tuple[Modules, Format | None]] = []
    groups = reader.raw("config_groups")
    if not isinstance(groups, Mapping) or not (groups or reader.raw("kv_cache_scheme")):
        raise ConfigError(f"{WHERE}: config_groups must be an object with a group, got {groups!r}")
    for name, values in groups.items():
        group = ConfigReader(values, where=f"{WHERE}: config_groups: {name}")
        modules = _targets(module_names(group.raw("targets")))
        rows.append((modules, _group_format(group, group.nullable("format", None, str) or usual)))
        group.finish({}, family="compressed-tensors")
    # names of whole classes of layers (Linear) come after those of single ones
    rows.sort(key=lambda row: row[0] == EVERY)
    return Quantization("compressed-tensors", tuple(rows), _named(module_names(reader.raw("ignore"))), head=True)


def _group_format(group: ConfigReader, stored: str | None) -> Format | None:
    weights = group.raw("weights")
    rounded = group.raw("input_activations")
    if group.raw("output_activations"):
        raise not_built("output_activations", "rounding of inputs is")
    if weights is None:
        return None
    reader = ConfigReader(weights, where=f"{WHERE}: weights")
    bits, kind = reader.optional("num_bits", 8, int), reader.choice("type", "int", ("int", "float"))
    symmetric = reader.optional("symmetric", True, bool)
    strategy = reader.nullable("strategy", None, str)
    size = reader.nullable("group_size", None, int)
    ordered = reader.raw("actorder") in (
        "group",
        "dynamic",
        True,
    )  # by "weight" or "static" columns stay where they are
    block = reader.raw("block_structure")
    made = dict.fromkeys(("observer", "observer_kwargs", "dynamic", "scale_dtype", "zp_dtype"), MADE)
    reader.finish(made, family="compressed-tensors")
    strategy = strategy or ("group" if size is not None and size > 0 else "tensor")
    what = f"weights of {kind}{bits} with strategy {strategy!r} in format {stored!r}"
    if kind == "int" and bits in (4, 8) and stored == "pack-quantized" and strategy in ("group", "channel"):
        if rounded:
            raise not_built(f"{what} with rounded activations", "without them, or in format 'int-quantized',")
        return Packed(
            bits=bits,
            group=size if strategy == "group" else None,
            symmetric=symmetric,
            act_order=ordered,
        )
    if (kind, bits, size, symmetric, ordered) == ("float", 4, nvfp4.GROUP, True, False) and stored == NVFP4:
        if rounded:
            log_weights_only()
        return nvfp4.COMPRESSED
    naive = stored in ("int-quantized", "float-quantized", "naive-quantized")
    if not symmetric or ordered or not naive or bits != 8:
        raise not_built(what if symmetric else f"{what} with zeros", _BUILT)
    if kind == "float":
        found = _strategy_block(strategy, size, block, what)
        return EightBit(dtype=FLOAT8, block=found, round_rows=found is None and rounded is not None)
    if strategy not in ("channel", "tensor"):
        raise not_built(what, _BUILT)
    return EightBit(dtype="int8", round_rows=_rounds_rows(rounded))


NVFP4 = "nvfp4-pack-quantized"
_BUILT = (
    "compressed-tensors of 4 or 8 bits in 'pack-quantized', of int8 by channels in 'int-quantized', of float8 in "
    f"'float-quantized' and of float4 by groups of {nvfp4.GROUP} in {NVFP4!r} are"
)


def _strategy_block(strategy: str, size: int | None, block: Any, what: str) -> tuple[int, int] | None:
    if strategy in ("tensor", "channel"):
        return None
    if strategy == "block":
        return block_size(block)
    if strategy == "group" and size is not None:
        return 1, size
    raise not_built(what, _BUILT)


def _rounds_rows(rounded: Any) -> bool:
    """Whether activations are int8. Scales that do not depend on the token are not used: each row has its own."""
    if rounded is None:
        return False
    if rounded.get("num_bits", 8) != 8 or rounded.get("type", "int") != "int" or not rounded.get("symmetric", True):
        raise not_built(f"input_activations {dict(rounded)}", "symmetric int8 is")
    return True


def _named(names: Sequence[str]) -> Modules:
    """compressed-tensors' lists: whole names, or expressions behind `re:`."""
    return Modules(
        patterns=tuple(name.removeprefix("re:") if name.startswith("re:") else f"{re.escape(name)}$" for name in names)
    )


def _targets(names: Sequence[str]) -> Modules:
    return EVERY if "Linear" in names else _named(names)


METHOD = Method(_read, ignored=("global_compression_ratio", "version", "kv_cache_scheme"))
