"""Loops inside a program."""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from convoy.estimator.user_functions import as_arguments, as_list
from convoy.ipu import ipu_compiler, program
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue
from convoy.ipu.ipu_outfeed_queue import IPUOutfeedQueue
from convoy.types import PyTree

Body = Callable[..., PyTree]
Carry = list[jax.Array]


def repeat(
    n: int,
    body: Body,
    inputs: PyTree = None,
    infeed_queue: IPUInfeedQueue | None = None,
    use_while_v1: bool = True,
) -> PyTree:
    """Run a function several times, each time on its previous results.

    Outside of a program, the loop is compiled as a separate program.

    Args:
        n: number of iterations.
        body: a function of the carried values and an element of the queue: a tuple as several
            arguments, a dict as keyword arguments. Returns the carried values, optionally followed
            by results of `enqueue`.
        inputs: initial carried values.
        infeed_queue: a queue with an element for each iteration and replica.
        use_while_v1: no effect.

    Returns:
        The carried values: `None`, a single value, or a list.

    Raises:
        TypeError: if the body returns another number of values, or values of other types.
        ValueError: if a result of `enqueue` precedes a carried value.
    """
    del use_while_v1

    def loop(*values: jax.Array) -> PyTree:
        tape = program.tape()
        assert tape is not None
        outfeeds: list[IPUOutfeedQueue] = []

        def step(carried: Carry, element: PyTree) -> tuple[Carry, list[PyTree]]:
            outer, tape.puts = tape.puts, {}
            args, kwargs = as_arguments(element)
            results = _run_body(body, carried, *args, **kwargs)
            inner, tape.puts = tape.puts, outer
            outfeeds[:] = [outfeed for outfeed, _ in inner.values()]
            return results, [value for _, value in inner.values()]

        elements = None if infeed_queue is None else tape.data(infeed_queue, n)
        carried, put = jax.lax.scan(step, list(map(jnp.asarray, values)), elements, length=n)
        for outfeed, value in zip(outfeeds, put, strict=True):
            tape.put(outfeed, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), value))
        return _unpack(carried)

    return _in_program(loop, inputs)


def while_loop(
    condition: Callable[..., PyTree],
    body: Body,
    inputs: PyTree = None,
    infeed_queue: IPUInfeedQueue | None = None,
    maximum_iterations: int | None = None,
    use_while_v1: bool = True,
) -> PyTree:
    """Run a function as long as a condition of the carried values holds.

    Raises:
        NotImplementedError: with a queue, since the number of iterations is unknown.
    """
    del use_while_v1
    if infeed_queue is not None:
        raise NotImplementedError("while_loop() does not support an infeed_queue. Use repeat().")

    def loop(*values: jax.Array) -> PyTree:
        def has_next(state: tuple[jax.Array, Carry]) -> jax.Array:
            count, carried = state
            holds = jnp.squeeze(jnp.asarray(condition(*carried)))
            return holds if maximum_iterations is None else holds & (count < maximum_iterations)

        def step(state: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
            count, carried = state
            return count + 1, _run_body(body, carried)

        state = jnp.int32(0), list(map(jnp.asarray, values))
        return _unpack(jax.lax.while_loop(has_next, step, state)[1])

    return _in_program(loop, inputs)


def _in_program(loop: Body, inputs: PyTree) -> PyTree:
    """Run a loop in the current program, or in a separate one."""
    values = as_list(inputs)
    if program.tape() is not None:
        return loop(*values)
    outputs = ipu_compiler.compile(loop, values)
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _run_body(body: Body, carried: Carry, *args: PyTree, **kwargs: PyTree) -> Carry:
    """Run one iteration, and check its results."""
    try:
        returned = body(*carried, *args, **kwargs)
    except program.NeedsHostError:
        raise NotImplementedError(
            "A loop calls pipeline(), which cannot run inside of a program. Pass repeat_count to "
            "pipeline() instead."
        ) from None
    values = [jnp.asarray(value) for value in _without_enqueued(as_list(returned))]
    if len(values) != len(carried):
        raise TypeError(
            f"The body of a loop returned {len(values)} values, but {len(carried)} are carried. "
            "Return the same number."
        )
    for value, before in zip(values, carried, strict=True):
        if value.dtype != before.dtype or value.shape != before.shape:
            raise TypeError(
                f"The body of a loop returned {value.dtype}{list(value.shape)} for a value that is "
                f"{before.dtype}{list(before.shape)}. Return the same type and shape."
            )
    return values


def _unpack(values: Sequence[jax.Array]) -> PyTree:
    if not values:
        return None
    return values[0] if len(values) == 1 else list(values)


def _without_enqueued(returned: list[PyTree]) -> list[PyTree]:
    """Leave out the results of `enqueue`, which are `None`."""
    values = list(itertools.takewhile(lambda value: value is not None, returned))
    if any(value is not None for value in returned[len(values) :]):
        raise ValueError("A body returned None before a carried value. Return the values first.")
    return values
