"""Loops inside of a program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from convoy.ipu import ipu_compiler, program
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue


def repeat(
    n: int,
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Run a function several times, each time on what it returned before.

    Outside of a program, the loop is one by itself.

    Args:
        n: how many times.
        body: takes the carried values, then an element of the queue: a tuple as several
            arguments, a dict by name. Returns the carried values, and behind them, if it likes,
            what putting something into a queue returned.
        inputs: the carried values to begin with.
        infeed_queue: gives an element for each time and replica.
        use_while_v1: has no effect.

    Returns:
        The carried values: `None`, the only one, or a list.

    Raises:
        TypeError: if the body returns another number of values, or values of other types.
        ValueError: if what a queue returned is not behind the values.
    """
    del use_while_v1
    if program.tape() is None:
        outputs = ipu_compiler.compile(
            lambda *values: repeat(n, body, list(values), infeed_queue), _as_list(inputs)
        )
        return outputs[0] if isinstance(outputs, tuple) else outputs
    carried = [jnp.asarray(value) for value in _as_list(inputs)]

    def step(values: list[Any], element: Any) -> tuple[list[Any], list[Any]]:
        tape = program.tape()
        assert tape is not None
        before, tape.puts = tape.puts, {}
        positional, named = _arguments(element)
        new = _check(_called(body, *values, *positional, **named), values)
        inside, tape.puts = tape.puts, before
        sinks[:] = [sink for sink, _ in inside.values()]
        return new, [value for _, value in inside.values()]

    sinks: list[Any] = []
    tape = program.tape()
    assert tape is not None
    elements = tape.data(infeed_queue, n) if infeed_queue is not None else None
    carried, put = jax.lax.scan(step, carried, elements, length=n)
    for sink, value in zip(sinks, put, strict=True):
        tape.put(sink, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), value))
    return _unpack(carried)


def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    maximum_iterations: int | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Run a function as long as a condition of the carried values holds.

    Raises:
        NotImplementedError: with a queue, as the number of elements is not known beforehand.
    """
    del use_while_v1
    if infeed_queue is not None:
        raise NotImplementedError(
            "while_loop() does not take an infeed_queue, as it is not known how much of it will be "
            "needed. Use repeat()."
        )
    if program.tape() is None:
        outputs = ipu_compiler.compile(
            lambda *values: while_loop(
                condition, body, list(values), maximum_iterations=maximum_iterations
            ),
            _as_list(inputs),
        )
        return outputs[0] if isinstance(outputs, tuple) else outputs
    carried = [jnp.asarray(value) for value in _as_list(inputs)]

    def goes_on(state: tuple[Any, list[Any]]) -> Any:
        count, values = state
        more = jnp.squeeze(jnp.asarray(condition(*values)))
        return more if maximum_iterations is None else more & (count < maximum_iterations)

    def step(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        count, values = state
        return count + 1, _check(_called(body, *values), values)

    return _unpack(jax.lax.while_loop(goes_on, step, (jnp.int32(0), carried))[1])


def _called(body: Callable[..., Any], *args: Any, **named: Any) -> Any:
    try:
        return body(*args, **named)
    except program.NeedsHostError:
        raise NotImplementedError(
            "The body of a loop calls pipeline(), which loops by itself. Pass it repeat_count."
        ) from None


def _as_list(inputs: Any) -> list[Any]:
    if inputs is None:
        return []
    return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]


def _unpack(values: Sequence[Any]) -> Any:
    if not values:
        return None
    return values[0] if len(values) == 1 else list(values)


def _arguments(element: Any) -> tuple[tuple, dict[str, Any]]:
    if element is None:
        return (), {}
    if isinstance(element, dict):
        return (), element
    return (tuple(element), {}) if isinstance(element, (tuple, list)) else ((element,), {})


def _check(returned: Any, carried: list[Any]) -> list[Any]:
    values = [jnp.asarray(value) for value in _without_operations(_as_list(returned))]
    if len(values) != len(carried):
        raise TypeError(
            f"The body of a loop returned {len(values)} values, but {len(carried)} are carried. "
            "Return as many."
        )
    for value, before in zip(values, carried, strict=True):
        if value.dtype != before.dtype or value.shape != before.shape:
            raise TypeError(
                f"The body of a loop returned {value.dtype}{list(value.shape)} for a value that is "
                f"{before.dtype}{list(before.shape)}. Return the same type and shape."
            )
    return values


def _without_operations(returned: list[Any]) -> list[Any]:
    """Leave out what queues returned, which is nothing."""
    values = list(itertools.takewhile(lambda value: value is not None, returned))
    if any(value is not None for value in returned[len(values) :]):
        raise ValueError(
            "The body of a loop returned None, as a queue's enqueue() does, before a carried "
            "value. Return the values first."
        )
    return values
