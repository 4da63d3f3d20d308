"""The way of sampled tokens from the last mesh of a pipeline to the first, on the devices."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.device.runtime.inputs import FlatRows
from jaxengine.device.runtime.passing import Passage, Way
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.transfer import put
from jaxengine.device.sampling import Slots

if TYPE_CHECKING:
    from jaxengine.device.runtime.forward import Call


def return_passage(space: ProgramSpace) -> Passage:
    """Of `Slots.last_token`."""
    first, last = space.views[0], space.views[-1]
    return Passage("tokens to stage 0", last, first, first.replicated_struct((space.max_num_seqs + 1,), jnp.int32))


class Handover:
    """What each step in flight left in `Slots.last_token`, on the first mesh. `call` runs a program by name.

    A step waits for the steps alone that sampled what its rows begin with: with the latest of all it would wait for those that
    are still on their way through the stages.

    Between hosts tokens come by a program, and devices do what they are given in order. So tokens of a step are sent when the
    next one is about to come to the last host: then that one has just sampled them, and the first has computed its part of the
    next. Where a row begins with them they are sent before. All hosts launch that at the same place among other programs.
    """

    def __init__(self, space: ProgramSpace, slots: Slots, call: Call) -> None:
        views = space.views
        self._call = call
        self._begins = views[0].here
        self._sampled = np.zeros(space.max_num_seqs + 1, np.int64)
        self._kept: deque[tuple[int, jax.Array]] = deque(maxlen=len(views) + 2)
        self._due: int | None = None
        self._way = Way(return_passage(space)) if len(views) > 1 else None
        if self._way is not None and self._begins:
            self._kept.append((0, put(np.zeros(len(self._sampled), np.int32), views[0].replicated)))

    def keep(self, number: int, sampled: Int32s, slots: Slots) -> None:
        """Step `number` has sampled tokens of these slots, and `slots` is what that left."""
        if self._way is not None:
            self._sampled[sampled] = number
            self._due = number
            if not self._way.crosses:
                self.bring(slots)

    def bring(self, slots: Slots) -> None:
        """Have the tokens of the latest step come to the first mesh, unless they have."""
        if self._way is not None and self._due is not None:
            tokens = self._way.take(self._call, slots.last_token)
            if self._begins:
                self._kept.append((self._due, tokens))
            self._due = None

    def run_once(self, slots: Slots, call: Call) -> None:
        """Have tokens come once."""
        if self._way is not None:
            self._way.take(call, slots.last_token)

    def last_token(self, rows: FlatRows, slots: Slots) -> jax.Array | None:
        """The last token of each slot `[S]`, those of `rows` among them, whose first token the device alone knows; None on a host
        where no step begins."""
        if self._way is None:
            return slots.last_token  # type: ignore[no-any-return]
        unknown = -rows.tokens[rows.tokens < 0]
        needed = int(self._sampled[unknown].max(initial=0))
        if self._due is not None and self._due <= needed:
            self.bring(slots)
        return next((tokens for number, tokens in self._kept if number >= needed), None)

    def newest(self, slots: Slots) -> jax.Array | None:
        """The same as of now, for a step of which every token is known."""
        if self._way is None:
            return slots.last_token  # type: ignore[no-any-return]
        return self._kept[-1][1] if self._begins else None
