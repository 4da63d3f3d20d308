"""Executables become bytes and run again; bytes that ask for more than an executable needs are not loaded."""

from __future__ import annotations

import enum
import io
import os
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tests.xla_cache.small import expected, result, scaled
from xla_cache import Program
from xla_cache.errors import CorruptError
from xla_cache.payload import pack, unpack


def test_round_trip():
    program = scaled(3)
    payload, tree = pack(program.lower().compile(), program)
    assert result(unpack(payload, tree, program)) == expected(3)


def test_round_trip_on_a_mesh_in_bfloat16():
    mesh = Mesh(np.array(jax.devices()[2:4]), ("tensor",))
    split = NamedSharding(mesh, PartitionSpec("tensor"))
    struct = jax.ShapeDtypeStruct((4, 4), jnp.bfloat16, sharding=split)
    program = Program("double", lambda x: x * 2, (struct,), mesh=mesh, platform="cpu")
    loaded = unpack(*pack(program.lower().compile(), program), program)
    output = loaded(jax.device_put(jnp.ones((4, 4), jnp.bfloat16), split))
    assert output.sharding == split
    assert float(output.sum()) == 32


def test_donation_and_memory_analysis_survive():
    program = scaled(3)
    loaded = unpack(*pack(program.lower().compile(), program), program)
    assert loaded.memory_analysis().alias_size_in_bytes == 32
    assert [argument.donated for argument in jax.tree.leaves(loaded.args_info)] == [False, True]


class Attribute:
    """What is pickled as an attribute of something."""

    def __init__(self, owner: object, name: str) -> None:
        self.reduced = (getattr, (owner, name))

    def __reduce__(self):
        return self.reduced


def test_a_member_of_an_enumeration_may_come_as_its_attribute(monkeypatch):
    """As Python 3.11.2 has it."""
    monkeypatch.setattr(enum.Enum, "__reduce_ex__", lambda self, protocol: (getattr, (type(self), self.name)))
    program = scaled(3)
    payload, tree = pack(program.lower().compile(), program)
    assert b"getattr" in payload
    assert result(unpack(payload, tree, program)) == expected(3)


@pytest.mark.parametrize(("owner", "name"), [(AxisType, "__class__"), (AxisType, "mro"), (np.ndarray, "tofile")])
def test_no_other_attribute_is_looked_up(owner, name):
    payload = pickle.dumps((Attribute(owner, name), None, None))
    with pytest.raises(CorruptError, match=f"the attribute '{name}', which no executable needs"):
        unpack(payload, "leaf", scaled(3))


class Bomb:
    def __init__(self, call: object, *arguments: object) -> None:
        self.reduced = (call, arguments)

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("call", [os.system, eval, getattr, Path, pickle.loads, np.load, jax.jit, io.open])
def test_a_pickle_that_calls_anything_is_refused_before_it_does(call, tmp_path):
    program, target = scaled(3), tmp_path / "made"
    payload = pickle.dumps((Bomb(call, f"touch {target}"), None, None))
    with pytest.raises(CorruptError, match="which no executable needs"):
        unpack(payload, "leaf", program)
    assert not target.exists()


def test_admitted_classes_open_no_door_to_their_modules():
    # a pickle may name "numpy" "dtype", and not what hangs on it
    payload = b"\x80\x04\x8c\x05numpy\x8c\x0fdtype.__class__\x93."
    with pytest.raises(CorruptError, match="which no executable needs"):
        unpack(payload, "leaf", scaled(3))


class Named(pickle.Pickler):
    def persistent_id(self, obj: object) -> object:
        return obj if isinstance(obj, tuple) and obj and obj[0] in ("exec", "device", "client", "file") else None


@pytest.mark.parametrize("pid", [("device", 99), ("file", "x"), ("exec", "text"), ("exec", b"not an executable")])
def test_persistent_ids_of_other_things_are_refused(pid):
    buffer = io.BytesIO()
    Named(buffer).dump((pid, None, None))
    with pytest.raises(CorruptError):
        unpack(buffer.getvalue(), "leaf", scaled(3))


@pytest.mark.parametrize("payload", [b"", b"\x80", b"not a pickle", pickle.dumps(1), pickle.dumps((1, 2, 3))])
def test_bytes_that_are_no_executable_are_refused(payload):
    with pytest.raises(CorruptError, match="cannot be loaded"):
        unpack(payload, "leaf", scaled(3))
