"""The cases of `selective_scan`, `channel_scan`, `gated_delta` and `generalised_delta`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.testing.arrays import array

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-5}
"""Of results of the size of 1. Inputs of either type are computed with in float32."""


class ScanInputs(NamedTuple):
    """The array arguments of `selective_scan` and `channel_scan`, in order."""

    x: jax.Array
    steps: jax.Array
    rates: jax.Array
    inward: jax.Array
    outward: jax.Array
    states: jax.Array
    slots: jax.Array
    starts: jax.Array
    offsets: jax.Array


class DeltaInputs(NamedTuple):
    """The array arguments of `gated_delta`, in order."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    decays: jax.Array
    rates: jax.Array
    states: jax.Array
    slots: jax.Array
    starts: jax.Array
    offsets: jax.Array


class GeneralisedInputs(NamedTuple):
    """The array arguments of `generalised_delta`, in order."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    decays: jax.Array
    removed: jax.Array
    rates: jax.Array
    states: jax.Array
    slots: jax.Array
    starts: jax.Array
    offsets: jax.Array


@dataclass(frozen=True, kw_only=True)
class RecurrenceCase:
    """One call of each op. `rows` are numbers of tokens; `padding` places follow them, which hold NaN.

    `shared` is how many groups, or heads of keys, the heads share; the states of a scan lie in `tiles` of each group. `slow`
    makes states that forget next to nothing, and keys that are all alike. Decays of a delta rule are of each head, or
    `by_channel`.
    """

    name: str
    reason: str
    rows: tuple[int, ...]
    padding: int = 0
    heads: int = 4
    shared: int = 2
    size: int = 8
    state: int = 12
    tiles: int = 1
    slow: bool = False
    by_channel: bool = False
    dtype: str = "float32"

    def __str__(self) -> str:
        return self.name

    @property
    def tolerance(self) -> float:
        """Largest difference from the definition, as a share of the largest result."""
        return TOLERANCE[self.dtype]

    def scan_inputs(self) -> ScanInputs:
        """The arrays of a scan, the same at every call."""
        rng = np.random.default_rng(0)
        steps = rng.uniform(0, 1e-3 if self.slow else 2, (self.places, self.heads))
        return ScanInputs(
            self._padded(rng.normal(size=(self.places, self.heads, self.size)), self.dtype),
            self._padded(steps, "float32"),
            array(-rng.uniform(0.01, 4, self.heads), jnp.float32),
            self._padded(rng.normal(size=(self.places, self.shared, self.state)), self.dtype),
            self._padded(rng.normal(size=(self.places, self.shared, self.state)), self.dtype),
            self._states(
                rng, (self.shared * self.tiles, self.state, self.heads * self.size // self.shared // self.tiles)
            ),
            *self._rows(),
        )

    def channel_inputs(self) -> ScanInputs:
        """The arrays of a scan of `heads * size` channels by themselves, the same at every call."""
        rng = np.random.default_rng(0)
        channels = self.heads * self.size
        tiles = (self.tiles, self.state, channels // self.tiles)
        return ScanInputs(
            self._padded(rng.normal(size=(self.places, channels)), self.dtype),
            self._padded(rng.uniform(0, 1e-3 if self.slow else 2, (self.places, channels)), "float32"),
            array(-rng.uniform(0.01, 4, tiles), jnp.float32),
            self._padded(rng.normal(size=(self.places, self.state)), self.dtype),
            self._padded(rng.normal(size=(self.places, self.state)), self.dtype),
            self._states(rng, tiles),
            *self._rows(),
        )

    def delta_inputs(self) -> DeltaInputs:
        """The arrays of a delta rule, the same at every call."""
        rng = np.random.default_rng(0)
        keys = rng.normal(size=(1 if self.slow else self.places, self.shared, self.state))
        keys = np.broadcast_to(keys, (self.places, self.shared, self.state))
        decaying = (self.places, self.heads, *((self.state,) if self.by_channel else ()))
        return DeltaInputs(
            self._padded(rng.normal(size=keys.shape), self.dtype),
            self._padded(keys / np.linalg.norm(keys, axis=-1, keepdims=True) * 0.99, self.dtype),
            self._padded(rng.normal(size=(self.places, self.heads, self.size)), self.dtype),
            self._padded(-rng.uniform(0, 1e-3 if self.slow else 2, decaying), "float32"),
            self._padded(rng.uniform(0.9 if self.slow else 0, 1, (self.places, self.heads)), "float32"),
            self._states(rng, (self.heads, self.state, self.size)),
            *self._rows(),
        )

    def generalised_inputs(self) -> GeneralisedInputs:
        """The arrays of a generalised delta rule, the same at every call; `tiles` is how many heads a tile has."""
        rng = np.random.default_rng(0)
        shape = (self.places, self.heads, self.state)
        removed = np.broadcast_to(rng.normal(size=(1, *shape[1:]) if self.slow else shape), shape)
        return GeneralisedInputs(
            self._padded(rng.normal(size=shape), self.dtype),
            self._padded(rng.normal(size=shape) / self.state**0.5, self.dtype),
            self._padded(rng.normal(size=(self.places, self.heads, self.size)), self.dtype),
            self._padded(-rng.uniform(0, 1e-3 if self.slow else 1, shape), "float32"),
            self._padded(removed / np.linalg.norm(removed, axis=-1, keepdims=True) * 0.99, self.dtype),
            self._padded(rng.uniform(0.9 if self.slow else 0, 1, shape), "float32"),
            self._states(rng, (self.heads // self.tiles, self.state, self.size * self.tiles)),
            *self._rows(),
        )

    @property
    def places(self) -> int:
        """Places that hold a token, and padding."""
        return sum(self.rows) + self.padding

    @property
    def slots(self) -> tuple[int, ...]:
        """Each row's, in no order; 0, the sink, of rows without tokens."""
        return tuple(
            number if count else 0 for number, count in zip(range(len(self.rows), 0, -1), self.rows, strict=True)
        )

    @property
    def starts(self) -> tuple[int, ...]:
        """Every third row begins its sequence."""
        return tuple(0 if number % 3 == 1 else 5 for number in range(len(self.rows)))

    def _states(self, rng: np.random.Generator, shape: tuple[int, ...]) -> jax.Array:
        """Of one slot more than there are rows, and the sink; NaN where no row may read."""
        states = rng.normal(size=(len(self.rows) + 2, *shape))
        read = [slot for slot, start in zip(self.slots, self.starts, strict=True) if slot and start]
        unread = np.setdiff1d(np.arange(len(states)), read)
        states[unread] = np.nan
        return array(states, jnp.float32)

    def _rows(self) -> tuple[jax.Array, ...]:
        """Slots, starts and offsets."""
        return tuple(array(x, jnp.int32) for x in (self.slots, self.starts, np.cumsum([0, *self.rows])))

    def _padded(self, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], dtype: str) -> jax.Array:
        values = np.array(values)
        values[sum(self.rows) :] = np.nan
        return array(values, dtype)


RECURRENCE_CASES = (
    RecurrenceCase(name="one-token", reason="the smallest step", rows=(1,)),
    RecurrenceCase(
        name="mixed",
        reason="sequences that decode among prompts, empty rows, and places behind them that hold no token",
        rows=(1, 150, 0, 1, 70, 6, 0),
        padding=26,
    ),
    RecurrenceCase(name="decode", reason="rows of one token, some places empty", rows=(1, 1, 1, 0, 0), padding=2),
    RecurrenceCase(
        name="chunks", reason="rows that end with a chunk, or one token behind it", rows=(64, 128, 129, 256, 65)
    ),
    RecurrenceCase(name="only-padding", reason="a step may hold no row of a bucket", rows=(0, 0), padding=4),
    RecurrenceCase(name="all-share", reason="one group for all heads, as in Granite 4", rows=(40, 1), shared=1),
    RecurrenceCase(
        name="tiles", reason="channels of two heads side by side, two tiles to a group", rows=(1, 40), heads=8, tiles=2
    ),
    RecurrenceCase(name="none-shares", reason="a group for each head", rows=(33, 1), shared=4),
    RecurrenceCase(
        name="slow",
        reason="hundreds of tokens add up: decays near 1, keys that are all alike",
        rows=(300, 90),
        slow=True,
    ),
    RecurrenceCase(
        name="by-channel",
        reason="decays of each channel, as in Kimi Linear: prompts, sequences that decode, and padding",
        rows=(1, 50, 0, 17, 16, 1),
        padding=5,
        by_channel=True,
    ),
    RecurrenceCase(
        name="by-channel-slow", reason="the same, and states that forget little", rows=(90,), slow=True, by_channel=True
    ),
    RecurrenceCase(name="bfloat16", reason="activations of a TPU or GPU", rows=(70, 1, 5), padding=3, dtype="bfloat16"),
    RecurrenceCase(
        name="vectors",
        reason="what fills a TPU's vectors: sequences that decode, prompts of parts of chunks, and padding",
        rows=(1, 0, 70, 1, 66, 1),
        padding=5,
        size=128,
        state=128,
        tiles=2,
    ),
    RecurrenceCase(
        name="vectors-of-two-cores",
        reason="states that the cores of a TPU share",
        rows=(1, 0, 1, 2),
        padding=1,
        heads=32,
        shared=16,
        size=128,
        state=128,
        tiles=2,
    ),
    RecurrenceCase(
        name="vectors-of-two-heads",
        reason="heads of 64 as in Granite 4, two in a vector; values in bfloat16",
        rows=(1, 130, 1),
        padding=3,
        heads=8,
        shared=1,
        size=64,
        state=128,
        tiles=4,
        dtype="bfloat16",
    ),
    RecurrenceCase(
        name="vectors-by-channel",
        reason="decays of each channel, as a TPU takes them: over blocks of a chunk, and chunks",
        rows=(1, 70, 1, 2),
        padding=2,
        heads=2,
        shared=2,
        size=128,
        state=128,
        by_channel=True,
    ),
    RecurrenceCase(
        name="vectors-by-channel-slow",
        reason="keys that are all alike and channels that forget nothing",
        rows=(66,),
        heads=1,
        shared=1,
        size=128,
        state=128,
        by_channel=True,
        slow=True,
    ),
    RecurrenceCase(
        name="vectors-slow",
        reason="keys that are all alike, over chunks of a TPU",
        rows=(1, 130),
        heads=2,
        shared=1,
        size=128,
        state=128,
        tiles=2,
        slow=True,
    ),
)

CHANNEL_CASES = (
    *(case for case in RECURRENCE_CASES if not (case.by_channel or case.size == 128 or case.shared != 2)),
    RecurrenceCase(
        name="vectors-of-channels",
        reason="what fills a TPU's vectors: sequences that decode, prompts of parts of chunks, and padding",
        rows=(1, 0, 70, 1, 66, 1),
        padding=5,
        heads=16,
        size=128,
        state=16,
        tiles=16,
        dtype="bfloat16",
    ),
)
"""Those of `channel_scan`, whose heads are nothing but channels."""

GENERALISED_CASES = (
    *(case for case in RECURRENCE_CASES if not (case.by_channel or case.size >= 64 or case.shared != 2)),
    RecurrenceCase(
        name="vectors-of-rwkv",
        reason="heads of 64, as all RWKV-7 have: sequences that decode, prompts of parts of chunks, and padding",
        rows=(1, 0, 70, 1, 66, 1),
        padding=5,
        size=64,
        state=64,
        tiles=2,
        dtype="bfloat16",
    ),
)
"""Those of `generalised_delta`, whose heads share nothing."""
