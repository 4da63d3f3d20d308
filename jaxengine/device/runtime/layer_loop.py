"""Layers that are alike as a loop in one program, for the CPU, whose matrices stay where they lie.

A loop over stacked weights is no way: XLA:CPU copies each layer's out of the stack. Here the loop is the first layer's code,
whose custom calls are given the addresses of the matrices of the layer that it is at (`OF_LAYER`). What anything else takes of a
layer, as biases, a call of its own copies: some kilobytes.

A program is given the first layer's arrays and a table of where those of all lie. To launch it with 700 arrays takes a
millisecond of a processor, which the step's own threads need (`fewer_arguments.json`). XLA does not know that the others are
read: whoever frees them waits for what was launched (`ForwardPass.wait`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from numpy.typing import NDArray

from pallas_kernels.native import COPY, OF_LAYER, call_name

CUSTOM_CALL, JIT = "ffi_call", ("jit", "pjit")

Own = tuple[jax.Array, ...]
"""The arrays of one layer, of all layers in the same order."""


@dataclass(frozen=True)
class _OfLayer:
    """An array of the layer that the loop is at, by the number of its address; `like` it is the first layer's."""

    number: int
    like: jax.Array


def table_struct(layers: int, arrays: int) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of `addresses_of` so many layers of so many arrays each."""
    return (layers, arrays, np.dtype(np.uintp).itemsize), np.uint8


def addresses_of(owns: Sequence[Own]) -> NDArray[np.uint8]:
    """Where the arrays of all layers lie, `[layers, arrays, 8]`: XLA leaves an array of a CPU where it is until it is deleted."""
    found = np.array(
        [[array.unsafe_buffer_pointer() for array in jax.block_until_ready(own)] for own in owns], np.uintp
    )
    return found.view(np.uint8).reshape(table_struct(*found.shape)[0])


def loop_layers(
    layer: Callable[[Own, Any, jax.Array], Any], own: Own, addresses: jax.Array, carry: Any, numbers: Any
) -> Any:
    """`carry = layer(own, carry, numbers of it)` for each layer's own arrays, in order; what the last one returns.

    `own` are the first layer's arrays, which are like any other's; `addresses` those of all. `numbers` is a tree of arrays
    `[layers, ...]`, of which a layer is given its part.
    """
    leaves, tree = jax.tree.flatten((carry, jax.tree.map(lambda each: each[0], numbers)))

    def flat(own: Own, *given: jax.Array) -> list[jax.Array]:
        found: list[jax.Array] = jax.tree.leaves(layer(own, *jax.tree.unflatten(tree, given)))
        return found

    closed = jax.make_jaxpr(flat)(own, *leaves)
    taken = _taken(closed.jaxpr)
    of_layer = [_OfLayer(number, like) for number, like in enumerate(own)]
    copied = [each for each in of_layer if closed.jaxpr.invars[each.number] in taken]

    def step(carry: Any, of_this: Any) -> tuple[Any, None]:
        addresses, numbers = of_this
        structs = [jax.ShapeDtypeStruct(each.like.shape, each.like.dtype) for each in copied]
        copies = _call(call_name(COPY) or "", structs, copied, {}, addresses)
        own: list[Any] = list(of_layer)
        for each, copy in zip(copied, copies, strict=True):
            own[each.number] = copy
        found = _run(closed.jaxpr, closed.consts, (*own, *jax.tree.leaves((carry, numbers))), addresses)
        return jax.tree.unflatten(jax.tree.structure(carry), found), None

    return jax.lax.scan(step, carry, (addresses, numbers))[0]


def _taken(jaxpr: Jaxpr) -> set[Any]:
    """The variables that something else than custom calls takes."""
    taken: set[Any] = {each for each in jaxpr.outvars if not isinstance(each, Literal)}
    for equation in jaxpr.eqns:
        variables = [None if isinstance(each, Literal) else each for each in equation.invars]
        if equation.primitive.name in JIT:
            inner = equation.params["jaxpr"].jaxpr
            within = _taken(inner)
            variables = [each for own, each in zip(inner.invars, variables, strict=True) if own in within]
        if equation.primitive.name != CUSTOM_CALL:
            taken.update(variables)
    return taken


def _run(jaxpr: Jaxpr, consts: Sequence[Any], given: Sequence[Any], addresses: jax.Array) -> list[Any]:
    """What a program gives, whose custom calls alone take what is given as `_OfLayer`."""
    values: dict[Var, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *given), strict=True))

    def read(each: Any) -> Any:
        return each.val if isinstance(each, Literal) else values[each]

    for equation in jaxpr.eqns:
        arguments = [read(each) for each in equation.invars]
        if not any(isinstance(each, _OfLayer) for each in arguments):
            found = _bind(equation, arguments)
        elif equation.primitive.name in JIT:
            inner: ClosedJaxpr = equation.params["jaxpr"]
            found = _run(inner.jaxpr, inner.consts, arguments, addresses)
        else:
            name, results, attributes = (equation.params[key] for key in ("target_name", "result_avals", "attributes"))
            structs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in results]
            found = _call(name, structs, arguments, dict(attributes), addresses)
        values.update(zip(equation.outvars, found, strict=True))
    return [read(each) for each in jaxpr.outvars]


def _bind(equation: JaxprEqn, arguments: Sequence[Any]) -> Sequence[Any]:
    parameters = equation.primitive.get_bind_params(equation.params)
    found = equation.primitive.bind(*arguments, **parameters)
    return found if equation.primitive.multiple_results else [found]


def _call(
    name: str, results: Sequence[Any], arguments: Sequence[Any], attributes: Mapping[str, Any], addresses: jax.Array
) -> Sequence[Any]:
    """A custom call that is given some arguments as `_OfLayer`."""
    numbers = [each.number if isinstance(each, _OfLayer) else -1 for each in arguments]
    arrays = [each.like if isinstance(each, _OfLayer) else each for each in arguments]
    call: Any = jax.ffi.ffi_call(name, results)
    found: Sequence[Any] = call(addresses, *arrays, **attributes, **{OF_LAYER: np.array(numbers, np.int64)})
    return found
