"""What a model's files say it is, as the options change it: nothing of the devices that it will run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxengine.contract.pooling import PoolerTraits
from jaxengine.device.layers.pooler import PoolerShape
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import apply_overrides
from jaxengine.device.models.config.language_part import SECTION
from jaxengine.device.models.interface import Model, Purpose
from jaxengine.device.models.registry import purpose, read_config
from jaxengine.device.models.registry import resolve as resolve_architecture
from jaxengine.device.weights.gguf.directory import is_gguf
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.device.weights.source import ResolvedModel, resolve
from jaxengine.errors import CheckpointError, ConfigError
from jaxengine.options.config import ModelConfig
from jaxengine.startup.dynamic_rope import settle_dynamic_rope
from jaxengine.startup.pooler import beside_generation, classifying_pooler, embedding_pooler, with_pooler
from jaxengine.startup.quantization import choose_head, choose_schemes
from jaxengine.text.sentence_files import SentenceFiles
from jaxengine.text.settings import read_json_object
from jaxengine.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """A model by its files.

    `config_json` is what everything that depends on config.json is made of: read once, with `hf_overrides` merged in.
    `generates` is false for a model that pools and does nothing else, which has no head for logits; `pooler` says what it pools
    in either case. `text_tokens` is how much of a text sentence-transformers reads. `weights` is its table for a plain
    checkpoint. `schemes` say how each matrix is kept.
    """

    source: ResolvedModel
    config_json: Mapping[str, Any]
    pooler: PoolerTraits
    generates: bool
    model_class: type[Model]
    config: DecoderConfig
    weights: tuple[Rule | Ignore, ...]
    schemes: Schemes
    text_tokens: int | None = None


def read_model(options: ModelConfig, *, config_alone: bool = False) -> ModelFiles:
    """Read a model's small files. With `config_alone` the model may be named by its config.json.

    Raises:
        ConfigError, CheckpointError: it cannot be found, is not one that is built, or options contradict its files.
    """
    named = None if options.model is None else Path(options.model)
    if config_alone and named is not None and named.is_file() and not is_gguf(named):
        source = ResolvedModel(named, str(options.model), "directory")
    else:
        source = find_model(options, options.revision, weights=False)
    sentences = SentenceFiles.load(source.path)
    values: Mapping[str, Any] = apply_overrides(read_config_json(source.path), options.hf_overrides)
    values = settle_dynamic_rope(values, options.max_model_len)
    model_class = resolve_architecture(values)
    config = read_config(model_class, values)
    found = settle_purpose(purpose(values), sentences, options, encodes=config.whole_rows)
    generates = found is Purpose.GENERATE
    if options.lm_head_dtype != "auto" and not generates:
        raise ConfigError(
            f"lm_head_dtype={options.lm_head_dtype!r} was asked for, and this model generates nothing; leave the option "
            "out, or start it with --runner generate if it has a head"
        )
    pooler, shape = _pooler(found, model_class, config, values, sentences, options, source)
    rules = tuple(model_class.WEIGHTS) if shape is None else with_pooler(model_class.WEIGHTS, shape)
    schemes = choose_schemes(options.quantization, values, rules)
    return ModelFiles(
        source=source,
        config_json=values,
        pooler=pooler,
        generates=generates,
        model_class=model_class,
        config=replace(config, pooler=shape),
        weights=rules,
        schemes=choose_head(schemes, options.lm_head_dtype, tied=config.tie_word_embeddings),
        text_tokens=None if generates else sentences.max_tokens,
    )


def _pooler(
    found: Purpose,
    model_class: type[Model],
    config: DecoderConfig,
    values: Mapping[str, Any],
    sentences: SentenceFiles,
    options: ModelConfig,
    source: ResolvedModel,
) -> tuple[PoolerTraits, PoolerShape | None]:
    """What the model pools, and its head for that; None beside one for logits."""
    if found is Purpose.GENERATE:
        traits = beside_generation(sentences, options.pooler)
        return replace(traits, size=config.hidden_size, each_size=config.hidden_size), None
    if found is Purpose.EMBED:
        return embedding_pooler(model_class, config, sentences, options.pooler)
    tokenizer = None
    if values.get("classifier_from_token") and not options.skip_tokenizer_init:
        tokenizer = Tokenizer.load(source.path, config_json=values)
    return classifying_pooler(model_class, config, found, values, options.pooler, tokenizer)


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


def settle_purpose(named: Purpose, sentences: SentenceFiles, options: ModelConfig, *, encodes: bool = False) -> Purpose:
    """What the model is to do: what its architecture's name says, unless the files of sentence-transformers or options differ.

    Raises:
        ConfigError: it is to generate and cannot.
    """
    if options.pools is False:
        if encodes:
            raise ConfigError("runner='generate' was asked for, and this model is an encoder, which generates nothing")
        return Purpose.GENERATE
    if options.head == "classify":
        return Purpose.CLASSIFY if named in (Purpose.GENERATE, Purpose.EMBED) else named
    if options.head == "embed":
        return Purpose.EMBED
    if named is Purpose.GENERATE and (options.pools or sentences.described):
        return Purpose.EMBED
    return named


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
    of_colbert = path.with_name("artifact.metadata")
    if "HF_ColBERT" in (values.get("architectures") or ()) and of_colbert.is_file():
        values.setdefault("colbert_dim", read_json_object(of_colbert).get("dim"))
    of_generation = path.with_name("generation_config.json")
    if "alignment_heads" not in values and values.get("model_type") == "whisper" and of_generation.is_file():
        values["alignment_heads"] = read_json_object(of_generation).get("alignment_heads")
    inner = values.get(SECTION)
    if "quantization_config" not in values and isinstance(inner, dict) and "quantization_config" in inner:
        values["quantization_config"] = inner["quantization_config"]  # of the language model alone (Kimi K2.5)
    return values
