"""The device half of sampling: pure functions over arrays, on one device or with the vocabulary cut over a mesh."""

from jaxengine.sampling.sampler import SampleOutputs, sample
from jaxengine.sampling.tensors import SamplingInputs, Variant, neutral, seed_words, spec

__all__ = ["SampleOutputs", "SamplingInputs", "Variant", "neutral", "sample", "seed_words", "spec"]
