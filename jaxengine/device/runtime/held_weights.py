"""The parameters that an engine holds: on its devices, on the host while their memory is lent, and replaced by others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from jaxengine.contract.runner import UnfitWeightsError
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.weights.cache_scales import cache_scale_paths
from jaxengine.device.weights.placement import HostCopy, adopt, place, shares_memory


class HeldWeights:
    """A model's parameters and behind them its draft's, in the order of `space.all_parameters`.

    Arrays that were given by someone who keeps them stay theirs, and are never deleted here.
    """

    def __init__(self, space: ProgramSpace, arrays: tuple[jax.Array, ...]) -> None:
        self.arrays = arrays
        self._space = space
        self._kept: dict[str, HostCopy] | None = None
        self._dropped: frozenset[str] = frozenset()
        self._borrowed: set[str] = set()

    @property
    def complete(self) -> bool:
        """Whether all are on the devices."""
        return self._kept is None and not self._dropped

    def write(self, given: Mapping[str, Any]) -> dict[str, jax.Array]:
        """As `Runner.write`; those that took the place of others."""
        if self._kept is not None and not self._dropped:
            raise RuntimeError("the weights are on the host; restore them before others are written")
        structs, values = self._space.all_parameters, self._space.with_copies(given)
        for path, value in values.items():
            if path not in structs or structs[path].shape != tuple(value.shape):
                has = f"of shape {structs[path].shape}" if path in structs else "not among the model's"
                raise UnfitWeightsError(
                    f"{path} of shape {tuple(value.shape)} cannot be written: the parameter is {has}"
                )
        if missing := sorted(self._dropped - values.keys()):
            raise UnfitWeightsError(
                f"the weights were dropped, and {len(missing)} are not among those to write: {missing[0]}, ..."
            )
        if self._kept is not None:
            self.restore()
        arrays = list(self.arrays)
        for number, (path, struct) in enumerate(structs.items()):
            if path in values:
                self._give_up(path, arrays[number])
                arrays[number] = self._take_in(path, values[path], struct)
        self.arrays, self._dropped = tuple(arrays), frozenset()
        return {path: array for path, array in zip(structs, self.arrays, strict=True) if path in values}

    def release(self, *, drop: bool) -> None:
        """Give the device's memory back; the host keeps a copy, or with `drop` of what lasts only."""
        structs = self._space.all_parameters
        if self._kept is None:
            named = dict(zip(structs, self.arrays, strict=True))
            kept = self._lasting if drop else structs.keys() - self._dropped
            self._kept = {path: HostCopy.of(named[path]) for path in kept}
        self._free()
        if drop:
            self._kept = {path: self._kept[path] for path in self._lasting}
            self._dropped = frozenset(structs.keys() - self._kept.keys())

    def restore(self) -> None:
        """As `Runner.restore_weights`."""
        if self._kept is None:
            raise RuntimeError("the host keeps no weights, so there are none to restore")
        kept, self._kept = self._kept, None
        arrays = list(self.arrays)
        for number, (path, struct) in enumerate(self._space.all_parameters.items()):
            if path in kept:
                arrays[number] = place(kept.pop(path), struct)
        self.arrays = tuple(arrays)

    def close(self) -> None:
        """Free what the devices and the host hold."""
        self._kept = None
        self._free()
        self.arrays = ()

    @property
    def _lasting(self) -> set[str]:
        """Parameters that are not dropped with the weights: scales that were measured, and a draft model's own."""
        structs, target = self._space.all_parameters, self._space.with_copies(self._space.parameters)
        return {*cache_scale_paths(structs), *(structs.keys() - target.keys())}

    def _free(self) -> None:
        for path, array in zip(self._space.all_parameters, self.arrays, strict=False):
            self._give_up(path, array)

    def _take_in(self, path: str, value: Any, struct: jax.ShapeDtypeStruct) -> jax.Array:
        """A parameter's array. One of devices may be another's memory, which is noted."""
        if not isinstance(value, jax.Array):
            return place(value, struct)
        array = adopt(value, struct)
        if shares_memory(array, value):
            self._borrowed.add(path)
        return array

    def _give_up(self, path: str, array: jax.Array) -> None:
        """Free a parameter's memory, unless it is another's."""
        if path in self._borrowed:
            self._borrowed.discard(path)
        elif not array.is_deleted():
            array.delete()
