"""On a TPU parameters lie with their rows along the vectors, unless that would be mostly padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine.device.models.shared.layout import parameter_place
from pallas_kernels.check import pool_sized_moves
from tests.targets.tpu import devices


def sharding(*axes: str | None) -> NamedSharding:
    return NamedSharding(Mesh(np.asarray(jax.devices()[:4]), ("tensor",)), PartitionSpec(*axes))


@pytest.mark.parametrize(
    ("shape", "axes", "platform", "turned"),
    [
        ((201088, 2880), (), "tpu", True),
        ((201088, 2880), (None, "tensor"), "tpu", True),  # 720 of them: 768 with padding
        ((32, 2880, 5760), (None, None, "tensor"), "tpu", True),  # 1440: 1536, and 2880 only 2944
        ((32, 90, 2880), (), "tpu", False),  # of which XLA turns the first two
        ((8192, 2048), (), "tpu", False),
        ((8192, 4), (), "tpu", False),
        ((201088, 1000), (None, "tensor"), "tpu", True),  # of 250, 256
        ((201088, 640), (None, "tensor"), "tpu", False),  # of 160, 256
        ((2880,), (), "tpu", False),
        ((201088, 2880), (), "cpu", False),
        ((201088, 2880), (), "gpu", False),
    ],
)
def test_rows_lie_along_the_vectors(shape, axes, platform, turned):
    plain = sharding(*axes)
    place = parameter_place(shape, plain, platform=platform)
    if turned:
        assert place.sharding == plain
        assert place.layout.major_to_minor == tuple(range(len(shape)))
    else:
        assert place is plain


@pytest.mark.tpu_compile
@pytest.mark.parametrize("asked", [False, True])
def test_a_tpu_looks_tokens_up_without_copying_the_table(asked):
    shape = (20096, 2880)
    mesh = Mesh(np.asarray(devices("v6e", count=1)), ("tensor",))
    place = NamedSharding(mesh, PartitionSpec())
    tokens = jax.ShapeDtypeStruct((64,), jnp.int32, sharding=place)
    table = jax.ShapeDtypeStruct(
        shape, jnp.bfloat16, sharding=parameter_place(shape, place, platform="tpu") if asked else place
    )
    look_up = jax.jit(lambda table, tokens: jnp.take(table, tokens, axis=0, mode="clip"))
    compiled = look_up.trace(table, tokens).lower(lowering_platforms=("tpu",)).compile()
    assert bool(pool_sized_moves(compiled.as_text(), shape)) != asked
