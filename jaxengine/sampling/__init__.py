"""The device half of sampling: pure functions over arrays, on one device or with the vocabulary cut over a mesh."""

from jaxengine.sampling.kept import Kept, Variant
from jaxengine.sampling.sampler import SampleOutputs, sample
from jaxengine.sampling.slots import Needs, Slots, settings_row, slots_spec

__all__ = ["Kept", "Needs", "SampleOutputs", "Slots", "Variant", "sample", "settings_row", "slots_spec"]
