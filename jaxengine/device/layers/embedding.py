"""Token and position embeddings, and the final projection to the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.adapters import AdapterSlots, AdapterSpec, TokenAdapterSlots
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.exchange import scatter_sum
from jaxengine.device.layers.linear import Matrix
from jaxengine.device.layers.schemes import TABLE
from pallas_kernels import AdapterRows


class Embedding(Matrix):
    """A table `[V, E]`, split over the vocabulary: it looks tokens up, and scores hidden states against every token.

    With `bias` every token's score gets a number of its own added. Tokens are looked up in what is multiplied, whatever keeps it.
    Either may have slots of adapters beside it, `looking` and `scoring`, which are others where one table does both, too.
    """

    NUMBERS = TABLE
    looking: TokenAdapterSlots | None = None
    scoring: AdapterSlots | None = None

    def __init__(self, vocab_size: int, width: int, *, bias: bool = False, context: ModelContext) -> None:
        self.vocab_axis = context.layout.vocab_axis(vocab_size)
        super().__init__(width, vocab_size, axes=(self.vocab_axis, "embed"), context=context)
        self.bias = context.parameter((vocab_size,), (self.vocab_axis,)) if bias else None

    def adapt_looking(self, spec: AdapterSpec) -> None:
        """Have slots of adapters for tokens that are looked up."""
        self.looking = TokenAdapterSlots(self.shape, self.axes, spec, self.context)

    def adapt_scoring(self, spec: AdapterSpec) -> None:
        """Have such for scores."""
        self.scoring = AdapterSlots(self.shape, self.axes, spec, self.context)

    def __call__(self, tokens: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        """`tokens [N]` -> `[N, E]` in the activation dtype; `adapters` says which one each goes through."""
        axes = [getattr(self, name).get_metadata()["axes"] for name in self.names]
        layout = self.context.layout
        scatters = self._split and not layout.own_tokens
        scatters &= tokens.ndim == 1 and layout.splits_stream(len(tokens), platform=self.context.platform)
        look_up = layout.per_device(
            partial(self._look_up, scatters=scatters),
            inputs=(("tokens",), *axes),
            outputs=("split_tokens" if scatters else "tokens", "embed"),
        )
        found: jax.Array = look_up(tokens, *self.arrays().values())
        found = found.astype(self.context.activation_dtype)
        if adapters is not None and self.looking is not None:
            found = self.looking.add(found, self._look_up_thin(tokens, adapters, self.looking), adapters)
        return layout.constrain_stream(found, platform=self.context.platform)

    def logits(self, hidden: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        """`hidden [R, E]` -> float32 `[R, V]`, split over the vocabulary as the table is; `adapters` as of tokens."""
        context = self.context
        scores = self.multiply(hidden)
        if self.bias is not None:
            scores += self.bias[...].astype(scores.dtype)
        if adapters is not None and self.scoring is not None:
            scores = self.scoring.add(scores, hidden, adapters)
        return context.layout.constrain(scores, ("tokens", self.vocab_axis))

    def _look_up(self, tokens: jax.Array, *arrays: jax.Array, scatters: bool) -> jax.Array:
        parameters = dict(zip(self.arrays(), arrays, strict=True))
        of_each = self.shape[0] // self.context.layout.shards(self.vocab_axis)
        return self._of_all(tokens, of_each, lambda numbers: self.scheme.rows(numbers, parameters), scatters=scatters)

    def _look_up_thin(self, tokens: jax.Array, adapters: AdapterRows, slots: TokenAdapterSlots) -> jax.Array:
        """`[N, R]`: of each token the row in its adapter's part of `inward`, where it has one."""

        def look_up(tokens: jax.Array, numbers: jax.Array, inward: jax.Array) -> jax.Array:
            return self._of_all(
                tokens,
                inward.shape[1],
                lambda tokens: inward.at[numbers, tokens].get(mode="clip", wrap_negative_indices=False),
            )

        of_slots = ("adapters", self.vocab_axis, "ranks")
        look_up = self.context.layout.per_device(
            look_up, inputs=(("tokens",), ("tokens",), of_slots), outputs=("tokens", "ranks")
        )
        found: jax.Array = look_up(tokens, adapters.adapters, slots.inward[...])
        return found

    @property
    def _split(self) -> bool:
        """Whether devices have a part of the table each."""
        return self.context.layout.mesh is not None and self.vocab_axis == "vocab"

    def _of_all(
        self, tokens: jax.Array, size: int, rows: Callable[[jax.Array], jax.Array], *, scatters: bool = False
    ) -> jax.Array:
        """`rows` of tokens, `[N, ...]`, of which a device has those of `size` tokens; `scatters` leaves it those it works on."""
        if not self._split:
            return rows(tokens)
        # Each device adds the rows it has and zeros for the others: the sum is exact, one term of it is not zero.
        across = self.context.layout.across(self.vocab_axis)
        local = tokens - jax.lax.axis_index(across) * size
        mine = (local >= 0) & (local < size)
        found = rows(local)
        added = jnp.where(mine[:, None], found, jnp.zeros((), found.dtype))
        return scatter_sum(added, across) if scatters else jax.lax.psum(added, across)


class LearnedPositions(nnx.Module):
    """A table of position embeddings; OPT's starts at row 2."""

    def __init__(self, num_positions: int, width: int, *, offset: int, context: ModelContext) -> None:
        self.context = context
        self.offset = offset
        self.table = context.parameter((num_positions + offset, width), ("positions", "embed"))

    def __call__(self, positions: jax.Array) -> jax.Array:
        """`positions [N]` -> `[N, E]` in the activation dtype."""
        rows = jnp.take(self.table[...], positions + self.offset, axis=0, mode="clip")
        return rows.astype(self.context.activation_dtype)
