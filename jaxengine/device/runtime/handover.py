"""The way of sampled tokens from the last mesh of a pipeline to the first, on the devices."""

from __future__ import annotations

from collections import deque

import jax
import numpy as np

from jaxengine.contract.batch import Int32s
from jaxengine.device.runtime.inputs import FlatRows
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.sampling import Slots


class Handover:
    """What each step in flight left in `Slots.last_token`, on the first mesh.

    A step waits for the steps alone that sampled what its rows begin with: with the latest of all it would wait for those that
    are still on their way through the stages.
    """

    def __init__(self, space: ProgramSpace, slots: Slots) -> None:
        self._place = space.views[0].replicated
        self._sampled = np.zeros(space.max_num_seqs + 1, np.int64)
        self._kept: deque[tuple[int, jax.Array]] = deque(maxlen=len(space.views) + 2)
        self._passes = len(space.views) > 1
        if self._passes:
            self.keep(0, np.zeros(0, np.int32), slots)

    def keep(self, number: int, sampled: Int32s, slots: Slots) -> None:
        """Step `number` has sampled tokens of these slots, and `slots` is what that left."""
        if self._passes:
            self._sampled[sampled] = number
            self._kept.append((number, jax.device_put(slots.last_token, self._place)))

    def last_token(self, rows: FlatRows, slots: Slots) -> jax.Array:
        """The last token of each slot `[S]`, those of `rows` among them, whose first token the device alone knows."""
        if not self._passes:
            return slots.last_token  # type: ignore[no-any-return]
        unknown = -rows.tokens[rows.tokens < 0]
        needed = int(self._sampled[unknown].max(initial=0))
        return next(tokens for number, tokens in self._kept if number >= needed)

    def newest(self, slots: Slots) -> jax.Array:
        """The same as of now, for a step of which every token is known."""
        return self._kept[-1][1] if self._passes else slots.last_token
