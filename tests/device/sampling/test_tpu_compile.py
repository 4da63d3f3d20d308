"""The real TPU compiler takes every sampling program, whole and cut over four chips, without gathering or sorting logits."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.sampling import Variant
from tests.device.sampling.rows import run
from tests.device.sampling.test_invariance import structs
from tests.targets.tpu import devices

pytestmark = [pytest.mark.tpu_compile, pytest.mark.slow]

ROWS, VOCAB, MAX_LOGPROBS = 32, 151_936, 20


@pytest.mark.parametrize(("generation", "chips"), [("v6e", 1), ("v5e", 4)])
@pytest.mark.parametrize("variant", list(Variant))
def test_a_sampling_program_compiles_for_a_tpu(variant: Variant, generation: str, chips: int) -> None:
    layout = share_layers(devices(generation, count=chips))
    cut = NamedSharding(layout.mesh, PartitionSpec(None, "tensor"))
    logits = jax.ShapeDtypeStruct((ROWS, VOCAB), jnp.float32, sharding=cut)
    kept, slots = structs(ROWS, VOCAB, layout=layout, platform="tpu")
    traced = run.trace(variant, logits, kept, slots, max_logprobs=MAX_LOGPROBS, layout=layout)
    hlo = traced.lower(lowering_platforms=("tpu",)).compile().as_text()
    assert sizes(hlo, "reduce") >= ROWS
    assert sizes(hlo, "all-gather") <= ROWS * MAX_LOGPROBS * chips
    if variant is not Variant.FULL:  # top_k of the log probabilities is the compiler's to choose
        assert sizes(hlo, "sort") == 0
    assert "f64" not in hlo


def sizes(hlo: str, operation: str) -> int:
    """Elements of the largest result of `operation`, 0 when there is none."""
    results: list[str] = re.findall(rf"= (.*?) {operation}(?:-start)?\(", hlo)
    shapes = [dims for result in results for dims in re.findall(r"\w+\[([\d,]*)\]", result)]
    return max((int(np.prod([int(dim) for dim in dims.split(",") if dim])) for dims in shapes), default=0)
