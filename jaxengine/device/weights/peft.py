"""A LoRA adapter as PEFT writes it: a directory with `adapter_config.json` and `adapter_model.safetensors` (or `.bin`).

Of a matrix W `[out, in]` an adapter has two thin ones, A `[r, in]` and B `[out, r]`; with it the layer computes

    y = W x + scale * B (A x)        scale = alpha / r, or alpha / sqrt(r) with rsLoRA

What else PEFT's configuration can ask for changes the arithmetic, and is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from jaxengine.device.weights.mapped_file import DTYPES
from jaxengine.device.weights.pickled_file import PickledFile
from jaxengine.device.weights.rules import Array
from jaxengine.errors import CheckpointError, UnsupportedError

CONFIG_FILE = "adapter_config.json"
SAFETENSORS_FILE = "adapter_model.safetensors"
PICKLED_FILE = "adapter_model.bin"
PREFIX = "base_model.model."
"""What PEFT writes before every name of the base model."""

DIGEST_BYTES = 16

LORA = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(\.weight)?")
"""A name of one of the two thin matrices, behind the prefix."""

REPEATED_GROUP = re.compile(r"\)[*+{]")

WRAPPERS = re.compile(r"\.(modules_to_save|base_layer|original_module)(?=\.)")
"""What PEFT puts into the names of whole tensors that it trains or keeps."""

OTHER_ARITHMETIC = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "lora_bias": "a bias beside B (lora_bias)",
    "trainable_token_indices": "single tokens of the embedding (trainable_token_indices)",
    "layer_replication": "replicated layers (layer_replication)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "arrow_config": "Arrow routing (arrow_config)",
    "kasa_config": "KaSA (kasa_config)",
    "monteclora_config": "MonteCLoRA (monteclora_config)",
    "target_parameters": "parameters that are no layer's matrix (target_parameters)",
}
"""Keys of the configuration that ask for another sum than the one above, and what they ask for."""

READ = ("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias", "init_lora_weights")
OF_TRAINING = (
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save", "lora_dropout"),
    *("megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
    *("velora_config", "runtime_config", "ensure_weight_tying", "qalora_group_size", "fan_in_fan_out"),
)
"""Keys that say how an adapter was trained, or what its tensors say themselves."""

KEEPS_BASE = ("gaussian", "eva", "orthogonal")
"""Ways to begin that leave the base model as it is, beside the default."""


@dataclass(frozen=True)
class LowRank:
    """The two thin matrices of one module: `a [rank, in]`, `b [out, rank]`, and what their product is multiplied by.

    Of an `embedding` `a [rank, tokens]` has a column for each token and `b [width, rank]`.
    """

    a: Array
    b: Array
    scale: float
    embedding: bool = False

    @property
    def rank(self) -> int:
        """How thin they are."""
        return int(self.a.shape[0])


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter: `modules` by the paths of the base model's modules, as in `model.layers.0.self_attn.q_proj`.

    `saved` are whole tensors by their names in the base model's checkpoint, trained ones (`modules_to_save`) and such of the base
    as PEFT wrote beside them. `digest` is of the files' contents.
    """

    digest: str
    modules: Mapping[str, LowRank]
    saved: Mapping[str, Array]

    @property
    def rank(self) -> int:
        """The greatest of its modules."""
        return max((module.rank for module in self.modules.values()), default=0)


def read_adapter(path: str | os.PathLike[str]) -> PeftAdapter:
    """Read an adapter; it is in memory then, whatever becomes of its files.

    Raises:
        CheckpointError: files are missing or damaged, or do not belong together.
        UnsupportedError: it is no LoRA adapter, or of a kind that is not built.
    """
    directory = Path(path)
    config_json = _read(directory, CONFIG_FILE)
    config = _config(directory / CONFIG_FILE, config_json)
    content, tensors = _tensors(directory)
    digest = hashlib.blake2b(config_json + b"\x00" + content, digest_size=DIGEST_BYTES).hexdigest()
    modules, saved = _sorted(directory, tensors, config)
    if not modules and not saved:
        raise CheckpointError(f"{directory} has no tensors of an adapter; save it again (peft: save_pretrained)")
    return PeftAdapter(digest, modules, saved)


def _read(directory: Path, name: str) -> bytes:
    try:
        return (directory / name).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{directory} is no LoRA adapter of PEFT's: {name} cannot be read ({error.strerror or error}); it has to be a "
            f"directory with {CONFIG_FILE} and {SAFETENSORS_FILE}"
        ) from None


def _config(path: Path, content: bytes) -> dict[str, Any]:
    """The configuration, where nothing in it asks for what is not built."""
    try:
        config = json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON: {error}; save the adapter again") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} must map names to values, got {type(config).__name__}; save the adapter again")
    if (kind := config.get("peft_type")) != "LORA":
        raise UnsupportedError(f"{path}: peft_type is {kind!r}, and only LORA adapters are built")
    for key, what in OTHER_ARITHMETIC.items():
        if config.get(key):
            raise UnsupportedError(f"{path} asks for {what}, which is not built; merge the adapter into its base model")
    if config.get("bias", "none") != "none":
        raise UnsupportedError(
            f"{path}: bias={config['bias']!r} trains the base model's biases, which is not built; train with bias='none', or "
            "merge the adapter into its base model"
        )
    begin = config.get("init_lora_weights", True)
    if not (isinstance(begin, bool) or begin in KEEPS_BASE):
        raise UnsupportedError(
            f"{path}: init_lora_weights={begin!r} changed the base model that the adapter belongs to. Save it for the base model "
            "as it was (peft: save_pretrained with path_initial_model_for_weight_conversion)"
        )
    known = {*READ, *OF_TRAINING, *OTHER_ARITHMETIC}
    if unknown := sorted(key for key, value in config.items() if value and key not in known):
        raise UnsupportedError(f"{path} has {', '.join(unknown)}, of which is not known what it changes")
    return config


def _tensors(directory: Path) -> tuple[bytes, dict[str, Array]]:
    """The weights' file, and its tensors by their names in it."""
    if not (directory / SAFETENSORS_FILE).exists() and (directory / PICKLED_FILE).exists():
        file = PickledFile(directory / PICKLED_FILE)
        return _read(directory, PICKLED_FILE), {name: np.array(file.view(name)) for name in file.tensors}
    content = _read(directory, SAFETENSORS_FILE)
    try:
        stored = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{directory / SAFETENSORS_FILE} is damaged: {error}; save or download it again"
        ) from None
    tensors = {}
    for name, tensor in stored:
        dtype = DTYPES.get(tensor["dtype"])
        if dtype is None:
            raise CheckpointError(f"{directory}: {name} has the dtype {tensor['dtype']}, which is not supported")
        tensors[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return content, tensors


def _sorted(
    directory: Path, tensors: Mapping[str, Array], config: Mapping[str, Any]
) -> tuple[dict[str, LowRank], dict[str, Array]]:
    """Thin matrices in pairs, by module, and whole tensors by name."""
    pairs: dict[str, dict[str, Array]] = {}
    embeddings: set[str] = set()
    saved: dict[str, Array] = {}
    for key, tensor in sorted(tensors.items()):
        if not key.startswith(PREFIX):
            raise CheckpointError(f"{directory}: the name {key} does not begin with {PREFIX}, as PEFT's do")
        name = key.removeprefix(PREFIX)
        found = LORA.fullmatch(name)
        if found is None and "lora_" in name:
            what = "DoRA" if "magnitude" in name else "a kind of adapter"
            raise UnsupportedError(f"{directory} has the tensor {key}: {what} that is not built")
        if found is None:
            saved[WRAPPERS.sub("", name)] = tensor
            continue
        pairs.setdefault(found["module"], {})[found["side"]] = tensor
        if found["embedding"]:
            embeddings.add(found["module"])
    return {
        module: _low_rank(directory, module, pair, config, embedding=module in embeddings)
        for module, pair in pairs.items()
    }, saved


def _low_rank(
    directory: Path, module: str, pair: Mapping[str, Array], config: Mapping[str, Any], *, embedding: bool
) -> LowRank:
    a, b = pair.get("A"), pair.get("B")
    if a is None or b is None:
        raise CheckpointError(
            f"{directory} has one of the two matrices of {module} and not the other; save the adapter again"
        )
    if a.ndim != 2 or b.ndim != 2:
        raise UnsupportedError(f"{directory}: {module} is a convolution, and only linear layers have adapters")
    rank = _of_pattern(config.get("rank_pattern"), module, config.get("r"))
    if not len(a) == b.shape[1] == rank:
        raise CheckpointError(
            f"{directory}: {module} has matrices of shapes {a.shape} and {b.shape}, and {CONFIG_FILE} says rank {rank}; save the "
            "adapter again"
        )
    alpha = _of_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    if not isinstance(alpha, int | float):
        raise CheckpointError(f"{directory / CONFIG_FILE}: lora_alpha must be a number, got {alpha!r}")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LowRank(a, b, scale, embedding)


def _of_pattern(patterns: Any, module: str, default: Any) -> Any:
    """What the first pattern says that the end of the module's path matches, as PEFT reads them.

    Raises:
        CheckpointError: a pattern that is no regular expression, or one whose matching may take for ever.
    """
    for pattern, value in (patterns or {}).items():
        try:
            if REPEATED_GROUP.search(pattern):
                raise CheckpointError(f"{CONFIG_FILE}: the pattern {pattern!r} repeats a group; name the modules")
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error as error:
            raise CheckpointError(f"{CONFIG_FILE}: {pattern!r} is no regular expression: {error}") from None
    return default
