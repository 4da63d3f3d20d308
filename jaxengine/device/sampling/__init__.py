"""The device half of sampling: pure functions over arrays, on one device or with the vocabulary cut over a mesh."""

from jaxengine.device.sampling.rows import SampleInputs, Variant
from jaxengine.device.sampling.sampler import SampleOutputs, sample
from jaxengine.device.sampling.slots import Slots, settings_row, slots_spec

__all__ = ["SampleInputs", "SampleOutputs", "Slots", "Variant", "sample", "settings_row", "slots_spec"]
