"""What keeps a run short: quick compilation where values are the subject and not speed, and cases left to slow runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest

from jaxengine.device.runtime import compiler_options


def _known(option: str, value: Any) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile({option: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True


_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
QUICK: dict[str, Any] = {option: value for option, value in _OPTIONS.items() if _known(option, value)}
"""Compiler options that this version of XLA knows: half the time of compilation or less, the same bits, slow code."""


def at_once(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What `function` gives, as one program: outside of one, JAX compiles every operation by itself, for every shape."""
    quick = QUICK if jax.default_backend() == "cpu" else None
    return jax.jit(functools.partial(function, **options), compiler_options=quick)(*arguments)


@contextmanager
def quick_programs() -> Iterator[None]:
    """Compile an engine's programs with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler_options, "cpu_compiler_options", lambda: QUICK)
        yield


def slow_but(
    cases: Iterable[Any], quick: Collection[Any], *, often: Collection[Any] | None = None, several: bool = False
) -> list[Any]:
    """Parameters of a test: those that are not among `quick` are slow, and rare too if not among `often` where it is given.

    `several`: each case is a tuple of the values of several arguments.
    """

    def marked(case: Any) -> Any:
        if case in quick:
            return case
        mark = pytest.mark.slow if often is None or case in often else pytest.mark.rare
        return pytest.param(*(case if several else (case,)), marks=mark)

    return list(map(marked, cases))


def rare_but(cases: Iterable[Any], often: Collection[Any]) -> list[Any]:
    """Parameters of a test: those that are not among `often` are rare."""
    return slow_but(cases, often, often=())
