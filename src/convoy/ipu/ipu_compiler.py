"""Functions as device programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convoy.ipu import program, scopes, system


def compile(computation: Callable[..., Any], inputs: Sequence[Any] | None = None) -> Any:
    """Compile a function of arrays into one program, and run it.

    It runs on every replica of the logical device of `scopes.ipu_scope`. What it is to keep it
    returns: there are no variables in it. A function that calls `pipelining_ops.pipeline` runs on
    the host, where it is little more than that call, and pipelines run on the devices.

    Args:
        computation: takes the inputs, and may use `loops` and queues, or `pipeline`.
        inputs: arrays.

    Returns:
        What it returns on the first replica: one value as a tuple of one.

    Raises:
        ValueError: if it returns the spec of an estimator.
    """
    outputs = program.run(
        _without_specs(computation),
        inputs,
        system.devices_of(scopes.current_device()),
        origin=computation,
    )
    if outputs is None or isinstance(outputs, (tuple, list, dict)):
        return outputs
    return (outputs,)


def _without_specs(computation: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*inputs: Any) -> Any:
        outputs = computation(*inputs)
        if type(outputs).__name__.endswith("EstimatorSpec"):
            raise ValueError(
                f"compile() was given a function that returns {type(outputs).__name__}. Use an "
                "IPUEstimator."
            )
        return outputs

    return compute
