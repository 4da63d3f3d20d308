"""The layout of what sampling needs of each row, as arrays of a fixed shape.

Letters: R rows, V vocabulary, L history places, K bias places, W = ceil(V / 32) words of a bitmask.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import jax
import numpy as np

from jaxengine.sampling_params import MAX_LOGIT_BIAS


class Variant(Enum):
    """How much a sampling program can do. Each is compiled per row count, and a step takes the least that serves all rows.

    `GREEDY` takes the most likely token and has no inputs. `RANDOM` adds temperature, top_k, top_p, min_p and seeds. `FULL` adds
    penalties, logit bias, allowed tokens and log probabilities. A row gets the same token from every variant that serves it.
    """

    GREEDY = "greedy"
    RANDOM = "random"
    FULL = "full"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class SamplingInputs:
    """One value per row of each option; None for the fields that a variant has no use for.

    Of `RANDOM` and `FULL`: `num_rows i32[]`, how many rows are sampled, the first ones (the others yield anything); `temperature
    f32[R]` (below `GREEDY_BELOW` is greedy), `top_k i32[R]` (0 is off), `top_p f32[R]` (1 is off), `min_p f32[R]` (0 is off),
    `seeds u32[R, 2]` (see `seed_words`), `positions i32[R]`: the position that the sampled token will have.

    Of `FULL`: `presence f32[R]`, `frequency f32[R]` (0 is off), `repetition f32[R]` (1 is off); `history i32[R, L]` the
    prompt and output ids so far, of which the first `num_prompt i32[R]` are the prompt, then -1; `bias_ids i32[R, K]`, then
    -1, and `bias_values f32[R, K]`; `allowed u32[R, W]`: bit `t % 32` of word `t // 32` is set when token `t` may be
    sampled; `targets i32[R]`: the token whose log probability is asked for, -1 for the sampled one.
    """

    num_rows: Any = None
    temperature: Any = None
    top_k: Any = None
    top_p: Any = None
    min_p: Any = None
    seeds: Any = None
    positions: Any = None
    presence: Any = None
    frequency: Any = None
    repetition: Any = None
    history: Any = None
    num_prompt: Any = None
    bias_ids: Any = None
    bias_values: Any = None
    allowed: Any = None
    targets: Any = None


_RANDOM = ("num_rows", "temperature", "top_k", "top_p", "min_p", "seeds", "positions")
_FIELDS = {
    Variant.GREEDY: (),
    Variant.RANDOM: _RANDOM,
    Variant.FULL: tuple(field.name for field in fields(SamplingInputs)),
}
_ALL = 0xFFFFFFFF
_LAYOUT: dict[str, tuple[type, str, Any]] = {
    "num_rows": (np.int32, "", 0),
    "temperature": (np.float32, "R", 0.0),
    "top_k": (np.int32, "R", 0),
    "top_p": (np.float32, "R", 1.0),
    "min_p": (np.float32, "R", 0.0),
    "seeds": (np.uint32, "R2", 0),
    "positions": (np.int32, "R", 0),
    "presence": (np.float32, "R", 0.0),
    "frequency": (np.float32, "R", 0.0),
    "repetition": (np.float32, "R", 1.0),
    "history": (np.int32, "RL", -1),
    "num_prompt": (np.int32, "R", 0),
    "bias_ids": (np.int32, "RK", -1),
    "bias_values": (np.float32, "RK", 0.0),
    "allowed": (np.uint32, "RW", _ALL),
    "targets": (np.int32, "R", -1),
}


def neutral(variant: Variant, rows: int, vocab: int, history: int, *, max_bias: int = MAX_LOGIT_BIAS) -> SamplingInputs:
    """NumPy arrays in which all rows are sampled, every one is greedy and every other option is off; the caller fills in place.

    `history` is L, the most prompt and output tokens that a row with penalties may have; `max_bias` is K.
    """
    structs = spec(variant, rows, vocab, history, max_bias=max_bias)
    values = {
        name: np.full(getattr(structs, name).shape, _LAYOUT[name][2], _LAYOUT[name][0]) for name in _FIELDS[variant]
    }
    if "num_rows" in values:
        values["num_rows"][...] = rows
    return SamplingInputs(**values)


def spec(variant: Variant, rows: int, vocab: int, history: int, *, max_bias: int = MAX_LOGIT_BIAS) -> SamplingInputs:
    """The shapes and types of `neutral(...)`, to lower a program from."""
    sizes = {"R": rows, "2": 2, "L": history, "K": max_bias, "W": -(-vocab // 32)}

    def struct(name: str) -> jax.ShapeDtypeStruct:
        dtype, axes, _ = _LAYOUT[name]
        return jax.ShapeDtypeStruct(tuple(sizes[axis] for axis in axes), dtype)

    return SamplingInputs(**{name: struct(name) for name in _FIELDS[variant]})


def seed_words(seed: int) -> tuple[int, int]:
    """The high and low 32 bits of a seed, which may be any 64-bit integer, signed or not."""
    return (seed >> 32) & _ALL, seed & _ALL
