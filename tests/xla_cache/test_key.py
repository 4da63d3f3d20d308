"""A key changes with every part that can change an executable, and says which part it was."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.xla_cache.small import context, scaled
from xla_cache import Program, program_key
from xla_cache.key import Key


def on(sharding: object) -> Program:
    return dataclasses.replace(
        scaled(3),
        arguments=(
            (jax.ShapeDtypeStruct((4, 4), jnp.float32, sharding=sharding),),
            jax.ShapeDtypeStruct((8,), jnp.int32),
        ),
    )


def test_equal_programs_have_equal_keys():
    assert program_key(scaled(3), context()).digest == program_key(scaled(3), context()).digest


MESH = Mesh(np.array(jax.devices()[:2]), ("tensor",))


@pytest.mark.parametrize(
    ("program", "part"),
    [
        (scaled(3, size=5), "arguments"),
        (scaled(3, name="other"), "program"),
        (dataclasses.replace(scaled(3), donate=()), "donate"),
        (dataclasses.replace(scaled(3), facts={"factor": 4}), "fact.factor"),
        (on(NamedSharding(MESH, PartitionSpec("tensor"))), "arguments"),
        (
            dataclasses.replace(
                scaled(3), arguments=tuple(map(list, scaled(3).arguments[:1])) + scaled(3).arguments[1:]
            ),
            "",
        ),
    ],
)
def test_a_changed_program_has_another_key(program, part):
    key, other = program_key(scaled(3), context()), program_key(program, context())
    differences = key.differences(other)
    assert [difference.part for difference in differences] == ([part] if part else [])
    assert (key.digest == other.digest) == (not part)


def test_where_a_program_is_sharded_matters_and_how():
    split, whole = (NamedSharding(MESH, PartitionSpec(axes)) for axes in ("tensor", None))
    assert program_key(on(split), {}).digest != program_key(on(whole), {}).digest
    assert program_key(on(whole), {}).digest != program_key(on(None), {}).digest


def test_a_difference_names_both_values():
    [difference] = program_key(scaled(3), context()).differences(
        program_key(scaled(3), context(versions_jaxlib="0.0.1"))
    )
    assert str(difference).startswith("versions.jaxlib: ")
    assert str(difference).endswith(" here, 0.0.1 there")


def test_digests_come_after_what_a_reader_understands():
    key, other = Key({"arguments": "a", "source.x": "a", "versions.jax": "1"}), Key({})
    assert [difference.part for difference in key.differences(other)] == ["versions.jax", "arguments", "source.x"]


def test_flags_and_versions_are_parts_in_any_order(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--b=1  --a=2")
    one = context()
    monkeypatch.setenv("XLA_FLAGS", "--a=2 --b=1")
    two = context()
    monkeypatch.setenv("XLA_FLAGS", "--a=2 --b=2")
    assert one == two != context()
    assert one["versions.jax"] == jax.__version__
