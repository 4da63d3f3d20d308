"""A program: a pure function and the one shape it is compiled for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax
from jax._src.config import traceback_in_locations_limit


@dataclass(frozen=True)
class Program:
    """A pure function and the one shape it is compiled for.

    `name` is unique among the programs of an engine and part of every cache key. `arguments` are `jax.ShapeDtypeStruct`s
    (with shardings where there is a mesh). `weight` orders compilation: the most expensive first.

    `facts` are the values that the function closes over and that its arguments do not show: what is missing here is missing
    from the key, and a wrong executable would be found. `nodes` are the dataclasses in its outputs. `compiler_options` are XLA's.
    `kind` says what it is for, of which nothing follows here. `device` runs it where there is no mesh; None: the first.
    `calls_out`: it calls what may still be being built (`ProgramCache.link`), so others are compiled before it.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donate: tuple[int, ...] = ()
    weight: float = 0.0
    mesh: Any = None
    platform: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[type, ...] = ()
    kind: str = ""
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    device: Any = None
    calls_out: bool = False

    def lower(self) -> jax.stages.Lowered:
        """Trace and lower, for `platform` where it is given."""
        platforms = None if self.platform is None else (self.platform,)
        # Without source locations: a Pallas kernel carries them into its compiled form, and a checkout that was moved, or a
        # comment that was added, would give another program.
        mesh = nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)
        with traceback_in_locations_limit(0), mesh:
            traced = jax.jit(self.function, donate_argnums=self.donate).trace(*self.arguments)
            lowered: jax.stages.Lowered = traced.lower(lowering_platforms=platforms)
        return lowered

    @property
    def devices(self) -> list[Any]:
        """The devices that run it: those of the mesh, else one."""
        if self.mesh is not None:
            return list(self.mesh.devices.flat)
        return jax.devices()[:1] if self.device is None else [self.device]
