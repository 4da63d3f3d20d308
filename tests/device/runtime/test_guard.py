"""A step that compiles is noticed, whatever compiled; other threads may do as they like."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest

from jaxengine.device.runtime.guard import CompileGuard
from jaxengine.errors import UnplannedShapeError


def compile_something(size: int) -> None:
    jax.jit(lambda x: x * 2 + size).lower(jnp.zeros(size)).compile()


@pytest.fixture(autouse=True)
def zeros_are_there():
    for size in range(3, 8):
        jnp.zeros(size).block_until_ready()


def test_a_step_without_compilation_passes():
    guard = CompileGuard("error")
    with guard.step():
        pass
    assert guard.num_violations == 0


def test_error_names_the_program():
    guard = CompileGuard("error")
    with pytest.raises(UnplannedShapeError, match=r"lambda.* compiled for .*--compile-guard warn"), guard.step():
        compile_something(3)
    assert guard.num_violations == 1


def test_warn_goes_on(caplog):
    guard = CompileGuard("warn")
    with caplog.at_level("WARNING", logger="jaxengine"), guard.step():
        compile_something(4)
    assert guard.num_violations == 1
    assert any("during a step" in record.message for record in caplog.records)


def test_other_threads_are_not_watched():
    guard = CompileGuard("error")
    with guard.step():
        thread = threading.Thread(target=compile_something, args=(5,))
        thread.start()
        thread.join()
    assert guard.num_violations == 0


def test_the_error_of_a_step_is_not_hidden():
    def failing_step():
        with CompileGuard("error").step():
            compile_something(6)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_step()
