"""What the rest of the engine reads of any model's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxengine.errors import ConfigError
from jaxengine.layers.sharding import check_divisible
from jaxengine.models.hf import ConfigReader
from jaxengine.models.interface import Paged


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The sizes every decoder-only family has. `num_kv_heads` is the checkpoint's count, without repeats.

    `dtype` is the checkpoint's own (`bfloat16`, ...), None where the file does not say. `tensor_parallel_size` devices share
    each layer. `windows` is how many positions a token sees in each layer, itself included, None being all; it is empty where all
    layers see everything.
    """

    vocab_size: int
    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    windows: tuple[int | None, ...] = ()
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"config.json: {self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly; "
                "num_key_value_heads must divide num_attention_heads"
            )
        check_divisible(self.tensor_parallel_size, heads=self.num_heads, kv_heads=self.num_kv_heads, mlp=self.mlp_size)

    @property
    def kv_repeats(self) -> int:
        """How often each KV head is stored, so that every device has one."""
        return max(1, self.tensor_parallel_size // self.num_kv_heads)

    @property
    def cache(self) -> tuple[Paged, ...]:
        """What the model keeps of a sequence."""
        kinds: dict[int | None, list[int]] = {}
        for layer, window in enumerate(self.windows or (None,) * self.num_layers):
            kinds.setdefault(window, []).append(layer)
        kv_heads = self.num_kv_heads * self.kv_repeats
        return tuple(Paged(tuple(layers), kv_heads, self.head_dim, keep=window) for window, layers in kinds.items())


def read_stored_dtype(reader: ConfigReader) -> str | None:
    """`dtype` (transformers 5) or `torch_dtype` (transformers 4); neither has a default."""
    new, old = reader.nullable("dtype", None, str), reader.nullable("torch_dtype", None, str)
    if new is not None and old is not None and new != old:
        raise ConfigError(f"config.json: dtype={new!r} and torch_dtype={old!r} are the same setting; give one")
    return new if new is not None else old


def read_token_ids(reader: ConfigReader, *, bos: int | None, eos: int | None) -> dict[str, Any]:
    """The special tokens, with the family's defaults. `pad_token_id` only matters in training."""
    reader.raw("pad_token_id")
    stop = reader.raw("eos_token_id", eos)
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    if any(not isinstance(token, int) or isinstance(token, bool) for token in stops):
        raise ConfigError(f"config.json: eos_token_id must be a token id or a list of them, got {stop!r}")
    return {"bos_token_id": reader.nullable("bos_token_id", bos, int), "eos_token_ids": tuple(stops)}
