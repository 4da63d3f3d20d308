"""Programs are compiled in parallel, timed by phase, and a failure names its program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xla_cache import CompileCounter, Program, compile_programs, obtain


def square(x: jax.Array) -> jax.Array:
    return x * x


def program(name: str, size: int, **changes: object) -> Program:
    return Program(name=name, function=square, arguments=(jax.ShapeDtypeStruct((size,), jnp.float32),), **changes)


def test_compiles_all_and_reports_each_phase():
    done = compile_programs([program(f"square {n}", n) for n in (3, 5, 7)], threads=2)
    assert set(done) == {"square 3", "square 5", "square 7"}
    for name, (compiled, record) in done.items():
        size = int(name.split()[1])
        assert compiled(jnp.full((size,), 3.0)).tolist() == [9.0] * size
        assert record.name == name
        assert record.compile_s > 0
        assert record.wall_s >= record.compile_s
    assert any(record.trace_s > 0 for _, record in done.values())


def test_largest_first_and_progress_in_order_of_completion():
    seen: list[str] = []
    programs = [program(f"p{n}", n, weight=n) for n in (2, 9, 4)]
    compile_programs(programs, threads=1, on_done=lambda record, compiled: seen.append(record.name))
    assert seen == ["p9", "p4", "p2"]


def test_failure_names_the_program():
    def broken(x: jax.Array) -> jax.Array:
        raise ValueError("no such thing")

    bad = Program(name="broken one", function=broken, arguments=(jax.ShapeDtypeStruct((2,), jnp.float32),))
    with pytest.raises(RuntimeError, match="'broken one' does not compile: no such thing"):
        compile_programs([bad, program("fine", 2)], threads=1)


def test_names_must_be_unique():
    with pytest.raises(ValueError, match="unique"):
        compile_programs([program("same", 2), program("same", 3)])


def test_donated_argument_is_aliased():
    done = compile_programs([program("donating", 1024, donate=(0,))])
    assert done["donating"][0].memory_analysis().alias_size_in_bytes == 4096


def test_counter_sees_compilations_of_any_thread_and_stops():
    with CompileCounter() as counter:
        compile_programs([program("counted a", 11), program("counted b", 12)], threads=2)
        assert counter.count == 2
    compile_programs([program("not counted", 13)])
    assert counter.count == 2


def test_a_compiled_program_cannot_compile_again():
    compiled, _ = obtain(program("fixed", 4))
    with CompileCounter() as counter, pytest.raises(TypeError, match="compiled"):
        compiled(np.ones((5,), np.float32))
    assert counter.count == 0
