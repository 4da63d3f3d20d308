"""DeepSeek V3.2 and GLM-5: DeepSeek V3 whose tokens attend to those that an indexer chooses for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from jaxengine.device.layers.indexer import IndexerShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.layer_kinds import read_layer_kinds
from jaxengine.device.models.config.rotary_config import read_shared
from jaxengine.device.models.families.deepseek import DeepseekV3ForCausalLM
from jaxengine.device.models.shared.experts import read_corrected_routing, read_dense_and_sparse, read_drafts
from jaxengine.device.models.shared.latent import ATTENTION, LatentConfig, latent_config, read_latent
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule
from jaxengine.errors import ConfigError

INDEXER = f"{ATTENTION}.indexer"
KINDS = {"indexed_attention": "indexed"}
FULL, SHARED = "full", "shared"
LETTERS = {"F": FULL, "S": SHARED}


def _turning(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """The first channels of each head, `[heads * D, ...]`, as they turn here."""
    assert isinstance(config, LatentConfig)
    indexer = config.attention.indexer
    assert indexer is not None
    if not indexer.interleaved:
        return tensor
    turning = indexer.rotary_dim
    order = [*range(0, turning, 2), *range(1, turning, 2), *range(turning, indexer.size)]
    return tensor.reshape(-1, indexer.size, *tensor.shape[1:])[:, order].reshape(tensor.shape)


INDEXER_WEIGHTS = (
    Rule("layers.*.attention.indexer.q.weight", f"{INDEXER}.wq_b.weight", _turning),
    Rule("layers.*.attention.indexer.k.weight", f"{INDEXER}.wk.weight", _turning),
    Rule("layers.*.attention.indexer.k_norm.scale", f"{INDEXER}.k_norm.weight", _turning),
    Rule("layers.*.attention.indexer.k_norm.bias", f"{INDEXER}.k_norm.bias", _turning),
    Rule("layers.*.attention.indexer.weights", f"{INDEXER}.weights_proj.weight"),
)


class DeepseekV32ForCausalLM(DeepseekV3ForCausalLM):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *(row for row in DeepseekV3ForCausalLM.WEIGHTS if not row.source.endswith(".q_proj.weight")),
        *INDEXER_WEIGHTS,
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **DeepseekV3ForCausalLM.IGNORED,
        "mlp_bias": Ignored("the feed-forward has no biases", allowed=(False,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> LatentConfig:
        return _read(
            reader,
            epsilon=1e-6,
            ranks=(1536, 512),
            sizes=(128, 64, 128),
            groups=(8, 4),
            index_heads=64,
            index_interleaved=False,
        )


class GlmMoeDsaForCausalLM(DeepseekV32ForCausalLM):
    """GLM-5: the channels that turn together are neighbours in its indexer too, and layers may share the choice of one before."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *DeepseekV32ForCausalLM.WEIGHTS,
        Ignore(f"{INDEXER}.**", "another layer chooses", layers="takers"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = DeepseekV32ForCausalLM.IGNORED

    @classmethod
    def read_config(cls, reader: ConfigReader) -> LatentConfig:
        config = _read(
            reader,
            epsilon=1e-5,
            ranks=(2048, 512),
            sizes=(192, 64, 256),
            groups=(1, 1),
            index_heads=32,
            index_interleaved=True,
        )
        return replace(config, takers=_takers(reader, config.num_layers))


def _read(
    reader: ConfigReader,
    *,
    epsilon: float,
    ranks: tuple[int, int],
    sizes: tuple[int, int, int],
    groups: tuple[int, int],
    index_heads: int,
    index_interleaved: bool,
) -> LatentConfig:
    """What config.json says, with the family's defaults."""
    rotary_dim = reader.optional_size("qk_rope_head_dim", sizes[1])
    interleaved = reader.nullable("rope_interleave", True, bool) is True
    shared = read_shared(
        reader, kv_heads=None, head_dim=rotary_dim, epsilon=epsilon, interleaved=interleaved, partial_rotary=1.0
    )
    num_layers = shared["num_layers"]
    read_layer_kinds(reader, num_layers, KINDS, default=("indexed",) * num_layers)
    attention = read_latent(reader, shared, ranks=ranks, sizes=sizes)
    if attention.query_rank is None:
        raise ConfigError(
            "config.json: q_lora_rank is null, and the indexer's queries are made of what it says the size of"
        )
    indexer = IndexerShape(
        width=attention.width,
        query_rank=attention.query_rank,
        heads=reader.optional_size("index_n_heads", index_heads),
        size=reader.optional_size("index_head_dim", 128),
        rotary_dim=rotary_dim,
        count=reader.optional_size("index_topk", 2048),
        interleaved=reader.optional("indexer_rope_interleave", index_interleaved, bool),
    )
    if indexer.size < rotary_dim:
        raise ConfigError(
            f"config.json: index_head_dim={indexer.size} is less than the qk_rope_head_dim={rotary_dim} channels that turn"
        )
    return latent_config(
        shared,
        routing=read_corrected_routing(
            reader, count=256, chosen=8, groups=groups[0], chosen_groups=groups[1], scale=2.5
        ),
        attention=replace(attention, indexer=indexer),
        inner=reader.optional_size("moe_intermediate_size", 2048),
        num_shared=reader.optional_size("n_shared_experts", 1),
        expert_layers=read_dense_and_sparse(reader, num_layers, dense=3),
        draft_layers=read_drafts(reader, num_layers, default=1),
    )


def _takers(reader: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """The layers without an indexer: by `indexer_types`, `index_topk_pattern` ("FSSS...", or such a list), or every layer but
    each `index_topk_freq`-th behind the first `index_skip_topk_offset`, the last of which has one.

    Raises:
        ConfigError: another number of names, unknown ones, or a first layer without an indexer.
    """
    pattern, key = reader.raw("index_topk_pattern"), "index_topk_pattern"
    period = max(reader.nullable("index_topk_freq", 1, int) or 1, 1)
    offset = reader.optional("index_skip_topk_offset", 2, int)
    if (given := reader.raw("indexer_types")) is not None:
        pattern, key = given, "indexer_types"
    if pattern is None:
        pattern, key = [FULL if max(layer - offset + 1, 0) % period == 0 else SHARED for layer in range(num_layers)], ""
    kinds = [LETTERS.get(kind, kind) for kind in pattern] if isinstance(pattern, (list, str)) else None
    if kinds is None or len(kinds) != num_layers or set(kinds) - {FULL, SHARED}:
        raise ConfigError(
            f"config.json: {key} must name full or shared for each of {num_layers} layers, got {pattern!r}"
        )
    if kinds[0] != FULL:
        where = f"{key} begins with {pattern[0]!r}" if key else f"index_skip_topk_offset is {offset}"
        raise ConfigError(
            f"config.json: {where}, and the first layer has no layer before it whose choice it could share"
        )
    return tuple(layer for layer, kind in enumerate(kinds) if kind == SHARED)
