"""What the runtime needs of a model that proposes what may follow a target model's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import jax

    from jaxengine.device.layers.cache import Cache
    from jaxengine.device.layers.keeps import Keeps
    from jaxengine.device.layers.stack import Layer
    from jaxengine.device.layers.step import Shared, Step


class Draft(Protocol):
    """A model that reads the tokens of a step, and it may be states of the target, and then guesses one token after the other.

    One that is `ahead` (EAGLE, MTP) reads at each place the state that the target has there and the token that follows it; `taps`
    are the target's layers whose output it reads, none being what `final_norm` gives. Another reads the token at the place alone.
    Its layers are numbered behind the target's in one cache, so that pages and what is found in the prefix cache are of both.

    Letters: N places of a step, R rows, T states of a place, V vocabulary; E and Ed are hidden sizes of target and draft.
    """

    layers: Sequence[Layer]
    ahead: bool
    taps: tuple[int, ...]

    @property
    def cache(self) -> tuple[Keeps, ...]:
        """What each layer keeps of a sequence."""
        ...

    def take_in(self, states: jax.Array) -> jax.Array:
        """The target's `states [N, T * E]` -> `[N, Ed]`; called once for a step, of a draft that is `ahead`."""
        ...

    def begin(self, tokens: jax.Array, states: jax.Array | None, positions: jax.Array) -> tuple[jax.Array, Shared]:
        """`tokens [N]`, `states [N, Ed]` where it is `ahead`, `positions [N]` -> the stream `[N, Ed]`, and what layers share."""
        ...

    def end(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The stream `[R, Ed]` after the last layer -> hidden `[R, Ed]` for `logits`, and the state for the next guess."""
        ...

    def logits(self, hidden: jax.Array) -> jax.Array:
        """`[R, Ed]` -> float32 `[R, V]` over the target's tokens; minus infinity where the draft has no such token."""
        ...


@dataclass(frozen=True)
class DraftRows:
    """A step whose sampled rows are to be followed by guesses.

    Of each of N places: `tokens`, of a draft that is `ahead` those that follow, and its `states [N, Ed]`, None else; `step` with
    what the draft's layers keep (`for_layer(i)` is of its layer i). Of each of B rows: `last`, the place of its last right token,
    `sampled`, the token after it, and `positions` of that. Of a row that has sampled nothing these mean nothing, and what it
    writes goes to the sink. `rows(starts, count)` is a step of `count` places for each row, from position `starts [B]` on.
    """

    tokens: jax.Array
    states: jax.Array | None
    step: Step
    last: jax.Array
    sampled: jax.Array
    positions: jax.Array
    rows: Callable[[jax.Array, int], Step]


@runtime_checkable
class BlockDraft(Protocol):
    """A draft that guesses all tokens at once (DFlash)."""

    def draft(self, given: DraftRows, cache: Cache, count: int) -> tuple[jax.Array, Cache]:
        """Logits `[B, count, V]` of the guesses, and the cache."""
        ...
