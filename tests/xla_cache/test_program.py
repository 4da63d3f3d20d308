"""A lowered program does not say where its source was."""

from __future__ import annotations

import base64
import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.targets.tpu import devices
from tests.xla_cache.small import scaled
from xla_cache import Program


def test_no_file_is_named():
    assert ".py" not in scaled(3).lower().as_text(debug_info=True)


@pytest.mark.tpu_compile
def test_not_even_inside_a_tpu_kernel():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2.0

    mesh = Mesh(devices("v6e", count=1), ("chip",))
    struct = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))
    program = Program(
        "kernel", lambda x: pl.pallas_call(kernel, out_shape=struct)(x), (struct,), mesh=mesh, platform="tpu"
    )
    [body] = re.findall(r"body\\22: \\22([A-Za-z0-9+/=]+)\\22", program.lower().as_text())
    assert b"stable_mosaic" in base64.b64decode(body)
    assert b".py" not in base64.b64decode(body)
