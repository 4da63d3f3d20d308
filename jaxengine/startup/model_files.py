"""What a model's files say it is, as the options change it: nothing of the devices that it will run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import apply_overrides
from jaxengine.device.models.interface import Model
from jaxengine.device.models.registry import has_head, read_config
from jaxengine.device.models.registry import resolve as resolve_architecture
from jaxengine.device.weights.source import ResolvedModel, resolve
from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.options.config import ModelConfig
from jaxengine.startup.dynamic_rope import settle_dynamic_rope
from jaxengine.startup.quantization import choose_head, choose_schemes
from jaxengine.text.pooling_config import PoolingDefaults
from jaxengine.text.settings import read_json_object


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """A model by its files.

    `config_json` is what everything that depends on config.json is made of: read once, with `hf_overrides` merged in.
    `generates` is false for a model of embeddings and nothing else, which has no head of its own. `schemes` say how each matrix
    is kept.
    """

    source: ResolvedModel
    config_json: Mapping[str, Any]
    pooling: PoolingDefaults
    generates: bool
    model_class: type[Model]
    config: DecoderConfig
    schemes: Schemes


def read_model(options: ModelConfig, *, config_alone: bool = False) -> ModelFiles:
    """Read a model's small files. With `config_alone` the model may be named by its config.json.

    Raises:
        ConfigError, CheckpointError: it cannot be found, is not one that is built, or options contradict its files.
    """
    if config_alone and options.model is not None and Path(options.model).is_file():
        source = ResolvedModel(Path(options.model), options.model, "directory")
    else:
        source = find_model(options, options.revision, weights=False)
    pooling = PoolingDefaults.load(source.path)
    values: Mapping[str, Any] = apply_overrides(read_config_json(source.path), options.hf_overrides)
    values = settle_dynamic_rope(values, options.max_model_len)
    values, generates = settle_head(values, pooling, only_embeds=options.only_embeds)
    if options.lm_head_dtype != "auto" and not generates:
        raise ConfigError(
            f"lm_head_dtype={options.lm_head_dtype!r} was asked for, and this model only computes embeddings; leave the option "
            "out, or start it with --runner generate if it has a head"
        )
    model_class = resolve_architecture(values)
    schemes = choose_schemes(options.quantization, values, model_class)
    config = read_config(model_class, values)
    return ModelFiles(
        source=source,
        config_json=values,
        pooling=pooling,
        generates=generates,
        model_class=model_class,
        config=config,
        schemes=choose_head(schemes, options.lm_head_dtype, tied=config.tie_word_embeddings),
    )


def find_model(options: ModelConfig, revision: str | None, *, weights: bool) -> ResolvedModel:
    """Where the files are that `model` names: fetched whole, or without the weights.

    Raises:
        CheckpointError, ConfigError: there is no such model.
    """
    return resolve(
        options.model,
        revision=revision,
        token=options.hf_token,
        cache_dir=options.download_dir,
        weights=weights,
        load_format=options.load_format,
    )


def settle_head(
    values: Mapping[str, Any], pooling: PoolingDefaults, *, only_embeds: bool | None = None
) -> tuple[dict[str, Any], bool]:
    """config.json for a model with a head or without one, and whether it can generate.

    Embedding models are published without a head whether their embeddings are tied or not; tied, they need none.

    Args:
        values: the contents of config.json.
        pooling: what the files beside it say.
        only_embeds: whether the model is for embeddings and nothing else; None: its files and its architecture's name decide.

    Raises:
        ConfigError: it is, and its embeddings are not built.
    """
    if only_embeds is None:
        only_embeds = pooling.described or not has_head(values)
    if not only_embeds:
        return dict(values), True
    if pooling.unsupported is not None:
        raise ConfigError(
            f"embeddings of this model are not built: {pooling.unsupported}. "
            "If it can continue texts, and that is what you want, give runner='generate'."
        )
    return {**values, "tie_word_embeddings": True}, False


def read_config_json(directory: Path) -> dict[str, Any]:
    """The contents of a checkpoint directory's config.json (or of that file itself).

    Raises:
        CheckpointError: there is none, or it is not a JSON object.
    """
    path = directory if directory.is_file() else directory / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{directory} has no config.json; name a Hugging Face checkpoint directory or hub id")
    values = read_json_object(path)
    beside = path.with_name("hf_quant_config.json")  # where NVIDIA's ModelOpt says that weights are quantised
    if "quantization_config" not in values and beside.is_file():
        values["quantization_config"] = {"quant_method": "modelopt", **read_json_object(beside)}
    return values
