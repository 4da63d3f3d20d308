"""What the rest of the engine reads of any model's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from jaxengine.contract.pooling import Pooling
from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.pooler import PoolerShape
from jaxengine.device.layers.sharding import Layout, check_divisible
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.errors import ConfigError

FOR_THE_START: Mapping[str, bool] = MappingProxyType({"traced": False})
"""Of a field that a start reads and no model class, but to size a parameter: programs are kept without it in their keys."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The sizes every decoder-only family has. `num_kv_heads` is the checkpoint's count, without repeats.

    `dtype` is the checkpoint's own (`bfloat16`, ...), None where the file does not say. `windows` is how many positions a token
    sees in each layer, itself included, None being all; it is empty where all layers see everything.
    `experts` are those of the layers that have some. With `head_bias` logits get a number of each token added. A model with a
    `pooler` has that as its head. With `whole_rows` tokens see those after them; `text_kinds` above 1 tell two texts apart.
    `tower` is the configuration of what encodes pictures or sounds, None where there is no such.
    `pooling` is what a classifier's file says that it is of, `text_pooling` what one of embeddings says.
    """

    vocab_size: int
    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int = field(metadata=FOR_THE_START)
    tie_word_embeddings: bool
    dtype: str | None = field(metadata=FOR_THE_START)
    windows: tuple[int | None, ...] = ()
    experts: ExpertsShape | None = None
    head_bias: bool = False
    pooler: PoolerShape | None = None
    whole_rows: bool = False
    text_kinds: int = 0
    tower: Any = None
    pooling: Pooling | None = field(default=None, metadata=FOR_THE_START)
    text_pooling: Pooling | None = field(default=None, metadata=FOR_THE_START)

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"config.json: {self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly; "
                "num_key_value_heads must divide num_attention_heads"
            )

    @property
    def blind(self) -> bool:
        """Whether nothing encodes pictures or sounds."""
        return self.tower is None

    @property
    def unread_tower_layers(self) -> tuple[int, ...]:
        """Layers behind those of a tower that are read."""
        return () if self.tower is None else tuple(range(self.tower.num_layers, self.tower.depth or 0))

    def check_layout(self, layout: Layout) -> None:
        """Refuse devices that cannot share each layer evenly.

        Raises:
            ConfigError: naming what does not divide, and numbers of devices that would do.
        """
        check_divisible(layout.shards("heads"), heads=self.num_heads, kv_heads=self.num_kv_heads, mlp=self.mlp_size)


def read_stored_dtype(reader: ConfigReader) -> str | None:
    """`dtype` (transformers 5) or `torch_dtype` (transformers 4); neither has a default."""
    new, old = reader.nullable("dtype", None, str), reader.nullable("torch_dtype", None, str)
    if new is not None and old is not None and new != old:
        raise ConfigError(f"config.json: dtype={new!r} and torch_dtype={old!r} are the same setting; give one")
    return new if new is not None else old
