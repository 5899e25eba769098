"""Functions as device programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convoy.ipu import program, scopes, system


def compile(computation: Callable[..., Any], inputs: Sequence[Any] | None = None) -> Any:
    """Compile a function of arrays into one program, and run it.

    It runs on every replica of the logical device of `scopes.ipu_scope`. What it is to keep it
    returns: there are no variables in it.

    Args:
        computation: takes the inputs, and may use `loops` and queues.
        inputs: arrays.

    Returns:
        What it returns on the first replica: one value as a tuple of one.
    """
    outputs = program.run(computation, inputs, system.devices_of(scopes.current_device()))
    if outputs is None or isinstance(outputs, (tuple, list, dict)):
        return outputs
    return (outputs,)
