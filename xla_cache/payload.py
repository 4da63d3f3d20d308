"""A compiled program to bytes and back, without letting the bytes choose what code runs.

JAX pickles an executable together with its avals, shardings and layouts, and unpickles whatever it is given. Here the same
bytes go through an unpickler that knows the few classes of such a pickle and nothing else. Trees are kept apart, as JSON.
"""

from __future__ import annotations

import enum
import io
import pickle
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
from jax._src.lib import xla_client
from jax.experimental import serialize_executable

from xla_cache.errors import CacheError, CorruptError
from xla_cache.program import Program
from xla_cache.tree import decode_tree, encode_tree

ADMITTED = frozenset(
    {
        ("jax", "P"),
        ("jax._src.core", "ShapedArray"),
        ("jax._src.core", "ManualAxisType"),
        ("jax._src.core", "MemorySpace"),
        ("jax._src.interpreters.pxla", "AllArgsInfo"),
        ("jax._src.interpreters.pxla", "UnloadedMeshExecutable"),
        ("jax._src.layout", "AutoLayoutSingleton"),
        ("jax._src.layout", "Layout"),
        ("jax._src.linear_util", "DebugInfo"),
        ("jax._src.mesh", "AbstractDevice"),
        ("jax._src.mesh", "AbstractMesh"),
        ("jax._src.mesh", "AxisType"),
        ("jax._src.mesh", "Mesh"),
        ("jax._src.named_sharding", "_unpickle_named_sharding"),
        ("jax._src.sharding_impls", "_unpickle_single_device_sharding"),
        ("jax._src.stages", "ArgInfo"),
        ("jaxlib._jax", "DeviceList"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
    }
)
DTYPES = frozenset(
    {"bfloat16", "int2", "uint2", "int4", "uint4", *(name for name in dir(ml_dtypes) if name.startswith("float"))}
)
"""The dtypes that numpy does not have, by their names in ml_dtypes."""


def pack(compiled: jax.stages.Compiled, program: Program) -> tuple[bytes, Any]:
    """The bytes of an executable and the JSON of its output tree.

    It must come from the compiler: one that came out of JAX's own disk cache serialises into something that loads and then
    fails when it is called.

    Raises:
        CacheError: it cannot be kept.
    """
    try:
        payload, _, out_tree = serialize_executable.serialize(compiled)
        _Trial(payload, program.devices).load()
    except Exception as error:
        raise CacheError(f"program {program.name!r} cannot be serialised: {error}") from error
    return payload, encode_tree(out_tree, program.nodes)


def unpack(payload: bytes, out_tree: Any, program: Program) -> jax.stages.Compiled:
    """The executable, loaded onto the devices of `program`.

    Raises:
        CorruptError: not such a payload, or one that asks for a class it has no business with.
    """
    try:
        tree = decode_tree(out_tree, program.nodes)
        unloaded, args_info, no_kwargs = _Unpickler(payload, program.devices).load()
        in_tree = jax.tree_util.tree_structure((program.arguments, {}))
        arguments = jax.tree_util.tree_unflatten(in_tree, args_info)
        return jax.stages.Compiled(unloaded.load(), [], arguments, tree, no_kwargs=no_kwargs)
    except CorruptError:
        raise
    except Exception as error:
        raise CorruptError(f"the executable of {program.name!r} cannot be loaded: {error}") from error


def _member(owner: Any, name: str = "") -> enum.Enum:
    """A member of an enumeration, which some versions of Python pickle as its attribute (3.11.2 does), and no other attribute."""
    if isinstance(owner, enum.EnumMeta) and name in owner.__members__:
        member: enum.Enum = owner[name]
        return member
    raise CorruptError(
        f"the executable asks for the attribute {name!r:.60}, which no executable needs: it is not loaded"
    )


class _Unpickler(pickle.Unpickler):
    def __init__(self, payload: bytes, devices: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(payload))
        self._all_devices = tuple(devices)
        self._devices = {device.id: device for device in devices}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if (module, name) not in ADMITTED and not (module == "ml_dtypes" and name in DTYPES):
            raise CorruptError(f"the executable asks for {module}.{name}, which no executable needs: it is not loaded")
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case ("exec", bytes(executable)):
                return self._load_executable(executable)
            case ("device", int(number)) if number in self._devices:
                return self._devices[number]
            case ("client",):
                return self._all_devices[0].client
        raise CorruptError(f"the executable asks for {str(pid)[:60]}, which this machine does not have")

    def _load_executable(self, executable: bytes) -> Any:
        devices = xla_client.DeviceList(self._all_devices)
        return devices[0].client.deserialize_executable(executable, executable_devices=devices)


class _Trial(_Unpickler):
    """Reads all but the machine code: what this loader would refuse is not worth keeping."""

    def _load_executable(self, executable: bytes) -> Any:
        return None
