"""Zeros for the places of a step that are no row's, written by a TPU kernel beside its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


class Padding:
    """Zeros in the places of the results from `used` on."""

    def __init__(self, used: jax.Array, target: Any, zeros: Any, copied: Any) -> None:
        self._used, self._target, self._zeros, self._copied = used, target, zeros, copied
        self._places = target.shape[0] - used

    def start(self) -> None:
        """Start the copies."""

        @pl.when(self._places > 0)
        def clear() -> None:
            self._zeros[...] = jnp.zeros(self._zeros.shape, self._zeros.dtype)

        self._each(lambda copy: copy.start())

    def wait(self) -> None:
        """Until all are done."""
        self._each(lambda copy: copy.wait())

    def _each(self, act: Callable[[Any], None]) -> None:
        at_once = self._zeros.shape[0]
        whole, left = self._places // at_once, self._places % at_once
        lax.fori_loop(0, whole, lambda index, _: act(self._copy(index * at_once, at_once)), None)
        pl.when(left > 0)(lambda: act(self._copy(whole * at_once, left)))

    def _copy(self, before: jax.Array, count: Any) -> Any:
        target = self._target.at[pl.ds(self._used + before, count)]
        return pltpu.make_async_copy(self._zeros.at[pl.ds(0, count)], target, self._copied)
