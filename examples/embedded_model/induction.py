"""Start with the circuit that copies, in place of waiting for it to form.

A small model that sees few tokens learns late, if at all, to look up what followed the last time a token occurred. That takes
two heads in a row (Olsson et al. 2022, "In-context Learning and Induction Heads"): one that brings each place the token before
it, and one that finds the place whose token before is the present one. Both are written into the random parameters here;
training refines or drops them.
"""

import jax.numpy as jnp
import numpy as np

from examples.embedded_model.model import HEAD_SCALE, ModelConfig, Params

STEADY = 4.0  # the entry that all tokens share, in units of the others: a head can point by position alone only from it
POINTING = 6.0  # score of a pair of rotary dimensions at distance one
MATCHING = 5.0  # product of the weights that compare a token with an earlier one's predecessor


def add_induction(params: Params, config: ModelConfig) -> Params:
    """The parameters with a previous-token head in layer 0 and a matching head in layer 1 (the first head of each).

    The residual stream `[E]` gets three places: what a token is (the first `H` entries), what the token before was (the next
    `H`), and one entry that is the same everywhere (the last).
    """
    size, half = config.head_size, config.head_size // 2
    values = {name: np.array(value) for name, value in params.items()}
    spread = float(values["embed_tokens"].std())
    token, before, steady = slice(0, size), slice(size, 2 * size), config.hidden_size - 1

    values["embed_tokens"][:, before] = 0.0
    values["embed_tokens"][:, steady] = STEADY * spread
    values["lm_head"] = HEAD_SCALE * values["embed_tokens"]

    query, key = values["self_attn.q_proj"], values["self_attn.k_proj"]
    value, out = values["self_attn.v_proj"], values["self_attn.o_proj"]
    frequencies = config.rope_theta ** (-np.arange(half) / half)
    fast, slow = np.flatnonzero(frequencies > 0.1), np.flatnonzero(frequencies < 1e-2)

    # Layer 0: the key of a place, turned on by one position, is the query of the next.
    amplitude = (POINTING * size**0.5) ** 0.5 / STEADY
    for layer in (0, 1):
        query[layer, :size] = 0.0
        key[layer, :size] = 0.0
        value[layer, :size] = 0.0
        value[layer, :size, token] = np.eye(size)
        out[layer, :, :size] = 0.0
    query[0, fast, steady] = amplitude
    key[0, fast, steady] = amplitude * np.cos(frequencies[fast])
    key[0, half + fast, steady] = amplitude * np.sin(frequencies[fast])
    out[0, before, :size] = spread * np.eye(size)

    # Layer 1: compare in the dimensions that hardly turn within a document.
    compared = np.concatenate([slow, half + slow])
    query[1, compared, np.arange(compared.size)] = MATCHING**0.5
    key[1, compared, size + np.arange(compared.size)] = MATCHING**0.5
    out[1, token, :size] = 2 * spread * np.eye(size)
    return {name: jnp.asarray(array) for name, array in values.items()}
