"""Programs that compile in milliseconds, and caches of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xla_cache import Program, ProgramCache, Store, device_fingerprint, environment


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Outputs:
    total: Any
    extra: Any = None


def scaled(factor: int, *, name: str | None = None, size: int = 4) -> Program:
    """`(weights [size, size], pages [8]) -> ({"out": Outputs(weights * factor)}, pages + factor)`, pages donated."""

    def function(weights: tuple[jax.Array], pages: jax.Array) -> Any:
        return {"out": Outputs(weights[0] * factor)}, pages + factor

    weights = jax.ShapeDtypeStruct((size, size), jnp.float32)
    return Program(
        name or f"scale {factor}",
        function,
        ((weights,), jax.ShapeDtypeStruct((8,), jnp.int32)),
        donate=(1,),
        facts={"factor": factor},
        nodes=(Outputs,),
    )


def result(compiled: Any, size: int = 4) -> tuple[float, list[int]]:
    """What a `scaled` program makes of ones and a count: `factor`, `[factor, factor + 1, ...]`."""
    outputs, pages = compiled((np.ones((size, size), np.float32),), jnp.arange(8, dtype=jnp.int32))
    assert outputs["out"].extra is None
    return float(outputs["out"].total.mean()), [int(page) for page in pages]


def expected(factor: int) -> tuple[float, list[int]]:
    return float(factor), [factor + i for i in range(8)]


def context(**changes: str) -> dict[str, str]:
    """The shared key parts of this machine, some replaced: `context(versions_jaxlib="0.0.1")`."""
    parts = {**environment("cpu"), **device_fingerprint(jax.devices()[:1]), "model.width": "4", "source.code": "a"}
    return {**parts, **{name.replace("_", ".", 1): value for name, value in changes.items()}}


def cache(path: Path, **changes: str) -> ProgramCache:
    return ProgramCache(context(**changes), store=Store.open(path))
