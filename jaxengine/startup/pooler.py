"""What a model pools, as its config.json, the files beside it and the options say it together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxengine.contract.pooling import Finish, PoolerTraits, Pooling
from jaxengine.device.layers.pooler import PoolerShape, ProjectionShape
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.interface import Model, Purpose
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError
from jaxengine.options.pooling import PoolerOptions
from jaxengine.text.sentence_files import SentenceFiles
from jaxengine.text.tokenizer import Tokenizer

TYPES = {"LAST": Pooling.LAST, "CLS": Pooling.FIRST, "MEAN": Pooling.MEAN}


def beside_generation(files: SentenceFiles, options: PoolerOptions) -> PoolerTraits:
    """What a model that generates pools: the last token's hidden state, unless its embeddings are made otherwise."""
    if options.pooling not in (None, "LAST"):
        raise ConfigError(
            f"pooler_config asks for {options.pooling}, and an engine that generates pools the last token; start it with "
            "runner='pooling'"
        )
    of_last = not files.described or (files.pooling == "LAST" and not files.dense)
    return PoolerTraits(pooling=Pooling.LAST if of_last else None, **_vectors(files, options), **_of_requests(options))


def embedding_pooler(
    model_class: type[Model], config: DecoderConfig, files: SentenceFiles, options: PoolerOptions
) -> tuple[PoolerTraits, PoolerShape]:
    """Of a model of embeddings.

    Raises:
        ConfigError: they are pooled in a way that is not built.
    """
    if files.unsupported is not None and options.pooling is None:
        raise ConfigError(
            f"embeddings of this model are not built: {files.unsupported}. "
            "If it can continue texts, and that is what you want, give runner='generate'; or say with pooler_config how to pool."
        )
    named = options.pooling or files.pooling
    pooling = (
        None
        if files.described and named is None
        else TYPES.get(named or "", config.text_pooling or model_class.POOLING)
    )
    heads = model_class.token_heads(config)
    if options.pooling in ("ALL", "STEP") or heads.alone:
        pooling = None
    projections = tuple(
        ProjectionShape(
            inputs=dense.inputs,
            outputs=dense.outputs,
            source=f"{dense.folder}.linear",
            bias=dense.bias,
            activation=dense.activation,
        )
        for dense in files.dense
    )
    of_tokens = tuple(head for head in (heads.vector, heads.weights) if head is not None)
    shape = PoolerShape(
        pooling=pooling or Pooling.LAST,
        projections=projections,
        of_each=len(projections),
        of_tokens=of_tokens,
        folders=(*_folders(files), *(head.source for head in of_tokens)),
    )
    traits = PoolerTraits(
        pooling=pooling,
        with_each=True,
        num_weights=0 if heads.weights is None else heads.weights.outputs,
        first=heads.first,
        last=heads.last,
        **_vectors(replace(files, normalize=True) if heads.alone else files, options),
        **_of_requests(options),
    )
    return _sized(traits, shape, config), shape


def classifying_pooler(
    model_class: type[Model],
    config: DecoderConfig,
    purpose: Purpose,
    values: Mapping[str, Any],
    options: PoolerOptions,
    tokenizer: Tokenizer | None,
) -> tuple[PoolerTraits, PoolerShape]:
    """Of a model that classifies, scores or rewards.

    Raises:
        ConfigError: config.json contradicts itself, or its tokens are not the tokenizer's.
    """
    of_tokens = purpose in (Purpose.CLASSIFY_TOKENS, Purpose.REWARD, Purpose.PROCESS_REWARD)
    labels = _labels(values, purpose)
    projections: tuple[ProjectionShape, ...]
    if asked := values.get("classifier_from_token"):
        projections = (_from_tokens(asked, values, config, model_class.WEIGHTS, tokenizer),)
        labels = tuple(asked) if projections[0].outputs > 1 else labels[:1]
        of_each = 1
    else:
        projections, of_each = model_class.classifier(config, purpose, len(labels))
    pooling = None if of_tokens else TYPES.get(options.pooling or "", config.pooling or model_class.POOLING)
    if options.pooling in ("ALL", "STEP"):
        pooling = None
    elif of_tokens and options.pooling is not None:
        pooling = TYPES[options.pooling]
    shape = PoolerShape(pooling=pooling or Pooling.LAST, projections=projections, of_each=of_each)
    activation = _activation(values, len(labels))
    # rewards are compared as they are
    finish = Finish.NONE if purpose is Purpose.REWARD else activation
    traits = PoolerTraits(
        pooling=pooling,
        with_each=True,
        labels=labels,
        finish=finish if options.activate is None else activation if options.activate else Finish.NONE,
        activation=activation,
        **_of_requests(options),
    )
    return _sized(traits, shape, config), shape


def with_pooler(rules: Sequence[Rule | Ignore], shape: PoolerShape) -> tuple[Rule | Ignore, ...]:
    """The weight table of a model whose head is a pooler: one for logits that its checkpoint has all the same is left unread."""
    read = {source for rule in shape.rules for source in (rule.source, *rule.also)}
    table: list[Rule | Ignore] = []
    for row in rules:
        if isinstance(row, Ignore) and row.source in read:
            continue
        if not isinstance(row, Rule) or not row.target.startswith("head."):
            table.append(row)
        elif row.source not in read:
            table.append(Ignore(row.source, "logits are not asked for"))
    return (*table, *shape.rules)


def _vectors(files: SentenceFiles, options: PoolerOptions) -> dict[str, Any]:
    normalize = files.normalize if options.activate is None else options.activate
    return {"finish": Finish.NORMALIZE if normalize else Finish.NONE, "prompts": files.prompts}


def _of_requests(options: PoolerOptions) -> dict[str, Any]:
    names = ("dimensions", "step_tag_id", "returned_token_ids", "mean", "sigma", "chunk_long", "longest_input")
    return {name: getattr(options, name) for name in names}


def _sized(traits: PoolerTraits, shape: PoolerShape, config: DecoderConfig) -> PoolerTraits:
    width = config.hidden_size
    size, each_size = shape.size(width), shape.each_size(width)
    if traits.dimensions is not None and traits.dimensions > size:
        raise ConfigError(f"pooler_config: dimensions must be at most {size}, got {traits.dimensions}")
    if any(number >= each_size for number in traits.returned_token_ids or ()):
        raise ConfigError(
            f"pooler_config: returned_token_ids must be below {each_size}, got {traits.returned_token_ids}"
        )
    return replace(
        traits, size=size, each_size=each_size, whole_prompts=config.whole_rows, tells_apart=config.text_kinds > 1
    )


def _folders(files: SentenceFiles) -> tuple[str, ...]:
    return tuple(dense.folder for dense in files.dense)


def _labels(values: Mapping[str, Any], purpose: Purpose) -> tuple[str, ...]:
    if purpose is Purpose.REWARD:
        return ("reward",)
    named = values.get("id2label")
    if isinstance(named, Mapping) and named:
        try:
            return tuple(str(text) for _, text in sorted(named.items(), key=lambda item: int(item[0])))
        except ValueError:
            raise ConfigError(f"config.json: id2label must map numbers to names, got {named!r}") from None
    count = values.get("num_labels", 2)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"config.json: num_labels must be an integer of at least 1, got {count!r}")
    return tuple(f"LABEL_{number}" for number in range(count))


def _activation(values: Mapping[str, Any], num_labels: int) -> Finish:
    """What scores of classes go through: as sentence-transformers or the kind of problem says, else by how many there are."""
    said = values.get("sentence_transformers")
    named = said.get("activation_fn") if isinstance(said, Mapping) else None
    named = named or values.get("sbert_ce_default_activation_function")
    if named is not None:
        found = {"Identity": Finish.NONE, "Sigmoid": Finish.SIGMOID, "Softmax": Finish.SOFTMAX}
        last = str(named).rpartition(".")[2]
        if last not in found:
            raise ConfigError(f"config.json asks for {named!r} after its classes; built are {', '.join(found)}")
        return found[last]
    by_problem = {
        "regression": Finish.NONE,
        "single_label_classification": Finish.SOFTMAX,
        "multi_label_classification": Finish.SIGMOID,
    }
    by_count = Finish.SIGMOID if num_labels == 1 else Finish.SOFTMAX
    return by_problem.get(str(values.get("problem_type")), by_count)


def _from_tokens(
    asked: Any,
    values: Mapping[str, Any],
    config: DecoderConfig,
    rules: Sequence[Rule | Ignore],
    tokenizer: Tokenizer | None,
) -> ProjectionShape:
    """A head that is made of the vocabulary's rows for some tokens: of two, such as no and yes, one score or two."""
    if not isinstance(asked, list) or not asked or not all(isinstance(text, str) for text in asked):
        raise ConfigError(f"config.json: classifier_from_token must be a list of tokens, got {asked!r}")
    if tokenizer is None:
        raise ConfigError("classifier_from_token needs the model's tokenizer, and skip_tokenizer_init is given")
    found = {text: tokenizer.backend.token_to_id(text) for text in asked}
    if unknown := [text for text, number in found.items() if number is None]:
        raise ConfigError(f"config.json: classifier_from_token names {unknown[0]!r}, which is no token of the model")
    ids = tuple(number for number in found.values() if number is not None)
    two_way = values.get("method") == "from_2_way_softmax" or bool(values.get("is_original_qwen3_reranker"))
    if two_way and len(ids) != 2:
        raise ConfigError(f"config.json: a softmax of two needs two tokens in classifier_from_token, got {asked!r}")
    target = "embed.table" if config.tie_word_embeddings else "head.table"
    source = next(rule.source for rule in rules if isinstance(rule, Rule) and rule.target == target)
    return ProjectionShape(
        inputs=config.hidden_size,
        outputs=1 if two_way else len(ids),
        source=source,
        tokens=ids,
        difference=two_way,
    )
