"""Compilation of functions into device programs."""

from collections.abc import Callable, Sequence

from convoy.ipu import config, program, scopes
from convoy.types import PyTree


def compile(computation: Callable[..., PyTree], inputs: Sequence[PyTree] | None = None) -> PyTree:
    """Compile a function of arrays into one program, and run it.

    It runs on every replica of the logical device of `scopes.ipu_scope`. It has no variables: it
    returns all values that are kept. A function that calls `pipelining_ops.pipeline` runs on the
    host instead, and its pipelines run on the devices.

    Args:
        computation: a function of the inputs. It may use `loops` and queues, or `pipeline`.
        inputs: arrays.

    Returns:
        The result on the first replica; a single value as a tuple of one.

    Raises:
        ValueError: if the function returns the spec of an estimator.
    """

    def checked(*inputs: PyTree) -> PyTree:
        outputs = computation(*inputs)
        if type(outputs).__name__.endswith("EstimatorSpec"):
            raise ValueError(f"The function returns {type(outputs).__name__}. Use an IPUEstimator.")
        return outputs

    devices = config.devices_of(scopes.current_device())
    outputs = program.run(checked, inputs, devices, origin=computation)
    if outputs is None or isinstance(outputs, (tuple, list, dict)):
        return outputs
    return (outputs,)
