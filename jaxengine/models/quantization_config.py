"""The `quantization_config` of config.json: what a checkpoint says of its quantised matrices, read as strictly as the rest.

Of a method that is not built, of a variant of one that is, and of a key that no one looked at, the message says what can be done.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxengine.errors import ConfigError, nearest
from jaxengine.models.hf import ConfigReader
from jaxengine.models.ignored import Ignored
from jaxengine.weights.formats import Format
from jaxengine.weights.formats.awq import Awq
from jaxengine.weights.formats.gptq import Gptq
from jaxengine.weights.formats.mxfp4 import Mxfp4
from jaxengine.weights.formats.packed import Packed
from jaxengine.weights.formats.plain import Plain

WHERE = "config.json: quantization_config"
INSTEAD = (
    "Use the model's bfloat16 checkpoint; quantization='int8', 'int4' or 'fp8' makes such matrices while it loads."
)
FLOAT8 = "float8_e4m3fn"
DECODED = ("mxfp4",)
"""Methods of checkpoints that can as well be read as plain ones, which the `quantization` option then quantises anew."""


@dataclass(frozen=True)
class Modules:
    """Modules of a checkpoint: those whose name has one of `parts` (whole parts between dots) or fits one of `patterns`."""

    parts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def __contains__(self, module: object) -> bool:
        dotted = f".{module}."
        return any(f".{part}." in dotted for part in self.parts) or any(
            re.match(pattern, str(module)) for pattern in self.patterns
        )


EVERY = Modules(patterns=("",))


@dataclass(frozen=True)
class Quantization:
    """`layers.schemes.stored.StoredFormats`. A module of `plain` is as it is; else the first of `rows` that has it says how.

    `head`: whether that holds of the head. Where it need not, its tensors say themselves whether they are quantised.
    """

    method: str
    rows: tuple[tuple[Modules, Format | None], ...]
    plain: Modules = Modules()
    head: bool = False

    def of(self, *modules: str) -> Format | None:
        """How the matrix of a module is stored, of which one of the names is right; None: as it is."""
        if any(module in self.plain for module in modules):
            return None
        return next((found for row, found in self.rows if any(module in row for module in modules)), None)


def read_quantization(values: Mapping[str, Any]) -> Quantization | None:
    """What config.json says of quantised matrices; None: there are none.

    Raises:
        ConfigError: a method or a variant that is not built, or a key that is not read.
    """
    given = values.get("quantization_config")
    if given is None:
        given = values.get("compression_config")  # as llm-compressor once wrote it
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(f"{WHERE} must be an object, got {given!r}")
    method = given.get("quant_method")
    if method is None and ("w_bit" in given or "q_group_size" in given):
        method = "awq"
    if not isinstance(method, str) or method not in METHODS:
        raise ConfigError(
            f"the checkpoint is quantised (quantization_config with quant_method {method!r}), which is not built; "
            f"known are {', '.join(METHODS)}.{nearest(str(method), METHODS)} {INSTEAD}"
        )
    reader = ConfigReader({key: value for key, value in given.items() if key != "quant_method"}, where=WHERE)
    read, ignored = METHODS[method]
    result = read(reader)
    reader.finish({**dict.fromkeys(ignored, _TRAINING), **_COMMON}, family=f"quantization {method}")
    return result


def read_cache_scheme(values: Mapping[str, Any]) -> str | None:
    """What config.json says of a quantised KV cache, `int8` or `fp8`; None: nothing.

    Raises:
        ConfigError: it is another.
    """
    given = values.get("quantization_config") or values.get("compression_config") or {}
    inner = given.get("quantization") or {}  # as ModelOpt nests it
    algorithm = given.get("kv_cache_quant_algo") or inner.get("kv_cache_quant_algo")
    scheme = given.get("kv_cache_scheme")
    if algorithm is not None and algorithm.upper() != "FP8":
        raise _cache_not_built(f"kv_cache_quant_algo {algorithm!r}")
    if isinstance(scheme, Mapping):
        symmetric, dynamic = scheme.get("symmetric", True), scheme.get("dynamic") or False
        if scheme.get("num_bits", 8) != 8 or not symmetric or dynamic:
            raise _cache_not_built(f"kv_cache_scheme {dict(scheme)}")
        return "int8" if scheme.get("type", "float") == "int" else "fp8"
    return "fp8" if scheme or algorithm else None


def _cache_not_built(what: str) -> ConfigError:
    return ConfigError(
        f"{WHERE}: {what} is not built; static fp8 and int8 are. kv_cache_dtype='bfloat16', 'fp8' or 'int8' decides instead."
    )


_TRAINING = Ignored("how the checkpoint was made, or with which kernels")
_COMMON = {
    "lm_head": Ignored("the head's tensors say so themselves", allowed=(None, True, False)),
    "modules_to_convert": Ignored("tensors say so themselves"),
}


def _awq(reader: ConfigReader) -> Quantization:
    bits = reader.optional("w_bit", reader.optional("bits", 4, int), int)
    _only("bits", bits, 4)
    group = reader.optional("q_group_size", reader.optional("group_size", 128, int), int)
    for key in ("version", "checkpoint_format", "format"):
        version = reader.nullable(key, None, str) or "gemm"
        if version.lower() not in ("gemm", "exllama"):
            raise _not_built(f"{key} {version!r}", "'gemm' is")
    return Quantization("awq", ((EVERY, Awq(_group(group))),), _left_plain(reader), _head(reader))


def _gptq(reader: ConfigReader) -> Quantization:
    bits = reader.required("bits", int)
    _only("bits", bits, 4, 8)
    group = reader.optional("group_size", 128, int)
    versions = [reader.nullable(key, None, str) for key in ("checkpoint_format", "format")]  # the same in both
    version = next(filter(None, versions), "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise _not_built(f"checkpoint_format {version!r}", "'gptq' and 'gptq_v2' are")
    usual: dict[str, Any] = {
        "bits": bits,
        "group_size": group,
        "sym": reader.optional("sym", True, bool),
        "desc_act": reader.optional("desc_act", False, bool),
    }

    def made(values: Mapping[str, Any]) -> Gptq:
        _only("bits", values["bits"], 4, 8)
        return Gptq(
            bits=values["bits"],
            group=_group(values["group_size"]),
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
    head = _head(reader)
    if head and inside:
        every = Modules(parts=(*every.parts, "lm_head"))
    return Quantization("gptq", (*rows, (every, made(usual))), _left_plain(reader), head)


def _fp8(reader: ConfigReader) -> Quantization:
    reader.choice("activation_scheme", "dynamic", ("dynamic", "static"))
    reader.choice("fmt", "e4m3", ("e4m3", "float8_e4m3fn"))
    reader.choice("expert_dtype", "fp8", ("fp8",))
    reader.choice("scale_fmt", "float", ("float", "ue8m0"))
    block = _block(reader.raw("weight_block_size"))
    return Quantization(
        "fp8", ((EVERY, Plain(stored=FLOAT8, block=block, round_rows=block is None)),), _left_plain(reader)
    )


def _fbgemm_fp8(reader: ConfigReader) -> Quantization:
    return Quantization("fbgemm_fp8", ((EVERY, Plain(stored=FLOAT8, round_rows=True)),), _left_plain(reader))


def _mxfp4(reader: ConfigReader) -> Quantization:
    return Quantization("mxfp4", ((Modules(parts=("experts",)), Mxfp4()),), _left_plain(reader))


def _modelopt(reader: ConfigReader) -> Quantization:
    inner = reader.section("quantization", ignored={"kv_cache_quant_algo": _TRAINING, "group_size": _TRAINING})
    source = reader if inner is None else inner
    algorithm = source.required("quant_algo", str)
    if algorithm != "FP8":
        raise _not_built(f"ModelOpt's quant_algo {algorithm!r}", "'FP8' is")
    names = [*_names(source.raw("exclude_modules")), *_names(source.raw("ignore"))]
    plain = Modules(
        tuple(name for name in names if "*" not in name),
        tuple(fnmatch.translate(name) for name in names if "*" in name),
    )
    return Quantization("modelopt", ((EVERY, Plain(stored=FLOAT8, round_rows=True)),), plain)


def _compressed_tensors(reader: ConfigReader) -> Quantization:
    sparsity = reader.raw("sparsity_config")
    if sparsity and sparsity.get("format", "dense") != "dense":
        raise _not_built(f"sparsity_config {sparsity.get('format')!r}", "dense matrices are")
    if reader.raw("transform_config"):
        raise _not_built("transform_config (matrices that are turned)", "matrices as they are")
    status = reader.nullable("quantization_status", None, str) or "compressed"
    if status != "compressed":
        raise _not_built(f"quantization_status {status!r}", "'compressed' is")
    usual = reader.nullable("format", None, str)
    rows: list[tuple[Modules, Format | None]] = []
    groups = reader.raw("config_groups")
    if not isinstance(groups, Mapping) or not (groups or reader.raw("kv_cache_scheme")):
        raise ConfigError(f"{WHERE}: config_groups must be an object with a group, got {groups!r}")
    for name, values in groups.items():
        group = ConfigReader(values, where=f"{WHERE}: config_groups: {name}")
        modules = _targets(_names(group.raw("targets")))
        rows.append((modules, _group_format(group, group.nullable("format", None, str) or usual)))
        group.finish({}, family="compressed-tensors")
    # names of whole classes of layers (Linear) come after those of single ones
    rows.sort(key=lambda row: row[0] == EVERY)
    return Quantization("compressed-tensors", tuple(rows), _named(_names(reader.raw("ignore"))), head=True)


def _group_format(group: ConfigReader, stored: str | None) -> Format | None:
    weights = group.raw("weights")
    rounded = group.raw("input_activations")
    if group.raw("output_activations"):
        raise _not_built("output_activations", "rounding of inputs is")
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
    reader.finish(
        {
            **dict.fromkeys(("observer", "observer_kwargs", "dynamic", "scale_dtype", "zp_dtype"), _TRAINING),
        },
        family="compressed-tensors",
    )
    strategy = strategy or ("group" if size is not None and size > 0 else "tensor")
    what = f"weights of {kind}{bits} with strategy {strategy!r} in format {stored!r}"
    if kind == "int" and bits in (4, 8) and stored == "pack-quantized" and strategy in ("group", "channel"):
        if rounded:
            raise _not_built(f"{what} with rounded activations", "without them, or in format 'int-quantized',")
        return Packed(
            bits=bits,
            group=size if strategy == "group" else None,
            symmetric=symmetric,
            act_order=ordered,
        )
    naive = stored in ("int-quantized", "float-quantized", "naive-quantized")
    if not symmetric or ordered or not naive or bits != 8:
        raise _not_built(what if symmetric else f"{what} with zeros", _BUILT)
    if kind == "float":
        found = _strategy_block(strategy, size, block, what)
        return Plain(stored=FLOAT8, block=found, round_rows=found is None and rounded is not None)
    if strategy not in ("channel", "tensor"):
        raise _not_built(what, _BUILT)
    return Plain(stored="int8", round_rows=_rounds_rows(rounded))


_BUILT = (
    "compressed-tensors of 4 or 8 bits in 'pack-quantized', of int8 by channels in 'int-quantized' and of float8 in "
    "'float-quantized' are"
)


def _strategy_block(strategy: str, size: int | None, block: Any, what: str) -> tuple[int, int] | None:
    if strategy in ("tensor", "channel"):
        return None
    if strategy == "block":
        return _block(block)
    if strategy == "group" and size is not None:
        return 1, size
    raise _not_built(what, _BUILT)


def _rounds_rows(rounded: Any) -> bool:
    """Whether activations are int8. Scales that do not depend on the token are not used: each row has its own."""
    if rounded is None:
        return False
    if rounded.get("num_bits", 8) != 8 or rounded.get("type", "int") != "int" or not rounded.get("symmetric", True):
        raise _not_built(f"input_activations {dict(rounded)}", "symmetric int8 is")
    return True


METHODS: Mapping[str, tuple[Callable[[ConfigReader], Quantization], tuple[str, ...]]] = {
    "awq": (
        _awq,
        (
            *("zero_point", "method"),  # tensors of zeros are there in any case
            *("backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config", "desc_act", "sym"),
            *("pack_dtype", "meta", "damp_percent", "true_sequential", "dataset", "tokenizer", "act_group_aware"),
        ),
    ),
    "gptq": (
        _gptq,
        (
            *(
                "damp_percent",
                "damp_auto_increment",
                "true_sequential",
                "static_groups",
                "dataset",
                "tokenizer",
                "meta",
            ),
            *(
                "use_cuda_fp16",
                "model_seqlen",
                "block_name_to_quantize",
                "module_name_preceding_first_block",
                "batch_size",
            ),
            *("pad_token_id", "disable_exllama", "use_exllama", "max_input_length", "exllama_config", "backend", "mse"),
            *("cache_block_outputs", "act_group_aware", "pack_dtype", "model_name_or_path", "model_file_base_name"),
            *(
                "method",
                "quantizer",
                "is_marlin_format",
                "parallel_packing",
                "pack_impl",
                "adapter",
                "rotation",
                "hyb_act",
            ),
        ),
    ),
    "fp8": (_fp8, ("kv_cache_scheme", "dequantize")),
    "fbgemm_fp8": (_fbgemm_fp8, ("activation_scale_ub",)),
    "mxfp4": (_mxfp4, ()),
    "modelopt": (_modelopt, ("producer", "kv_cache_scheme", "config_groups", "kv_cache_quant_algo")),
    "compressed-tensors": (_compressed_tensors, ("global_compression_ratio", "version", "kv_cache_scheme")),
}
"""How each method is read, and which of its keys say nothing of how matrices are stored."""


def _left_plain(reader: ConfigReader) -> Modules:
    names = [*_names(reader.raw("modules_to_not_convert")), *_names(reader.raw("ignored_layers"))]
    return Modules(parts=tuple(name.removesuffix(".weight").strip(".") for name in names))


def _head(reader: ConfigReader) -> bool:
    return bool(reader.nullable("lm_head", None, bool))


def _named(names: Sequence[str]) -> Modules:
    """compressed-tensors' lists: whole names, or expressions behind `re:`."""
    return Modules(
        patterns=tuple(name.removeprefix("re:") if name.startswith("re:") else f"{re.escape(name)}$" for name in names)
    )


def _targets(names: Sequence[str]) -> Modules:
    return EVERY if "Linear" in names else _named(names)


def _names(given: Any) -> Sequence[str]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{WHERE}: a list of modules must be a list of names, got {given!r}")
    return given


def _group(size: int) -> int | None:
    if size < -1 or size == 0:
        raise ConfigError(f"{WHERE}: group_size must be -1 (all inputs) or at least 1, got {size}")
    return None if size == -1 else size


def _block(given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    if (
        not isinstance(given, Sequence)
        or len(given) != 2
        or not all(isinstance(size, int) and size > 0 for size in given)
    ):
        raise ConfigError(f"{WHERE}: weight_block_size must be outputs and inputs, such as [128, 128], got {given!r}")
    return given[0], given[1]


def _only(key: str, value: int, *allowed: int) -> None:
    if value not in allowed:
        raise _not_built(f"{key}={value}", f"{' and '.join(map(str, allowed))} {'is' if len(allowed) == 1 else 'are'}")


def _not_built(what: str, built: str) -> ConfigError:
    return ConfigError(f"{WHERE}: {what} is not built; {built} built. {INSTEAD}")
