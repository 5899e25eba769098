"""The graph of a pipeline: its stages, called on symbolic tensors.

The inputs of the graph have one row per micro-batch, and a row holds the complete micro-batch. So
stages receive the elements of the infeed as they are, with a batch axis or without.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import convoy
import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy.estimator.jax_function import JaxOperation, is_symbolic
from convoy.estimator.user_functions import as_arguments, as_list
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue
from convoy.ipu.pipelining.options import OptimizerFunctionOutput, check_minimised
from convoy.types import PyTree

Stages = tuple[tuple[Callable[..., PyTree], ...], ...]
"""The functions of each stage: one, or several concurrent ones."""


class PipelineInput:
    """The arguments of the first stage: constant inputs, then an element of the infeed.

    Args:
        inputs: arrays or numbers.
        infeed: a queue, or `None`.

    Raises:
        ValueError: if there is neither.
    """

    def __init__(self, inputs: list[PyTree], infeed: IPUInfeedQueue | None) -> None:
        self._infeed = infeed
        self._inputs = [_canonical(np.asarray(value)) for value in inputs]
        parts = as_list(() if infeed is None else infeed.shapes())
        has_names = len(parts) == 1 and isinstance(parts[0], dict)
        element = as_arguments(parts[0] if has_names else parts)
        self.specs, self._structure = jax.tree.flatten((self._inputs, element))
        """Shapes and dtypes of all arrays."""
        if not self.specs:
            raise ValueError("The first stage has no arguments. Pass inputs or an infeed_queue.")

    @property
    def key(self) -> tuple:
        """Equal for inputs of the same shapes, dtypes and structure."""
        return str(self._structure), tuple((tuple(s.shape), str(s.dtype)) for s in self.specs)

    def arguments(self, values: list[PyTree]) -> tuple[list[PyTree], dict[str, PyTree]]:
        """Return values, one for each array, as arguments of the first stage."""
        inputs, (args, kwargs) = jax.tree.unflatten(self._structure, values)
        return [*inputs, *args], kwargs

    def rows(self, count: int) -> Iterator[list[np.ndarray]]:
        """Return the arrays of each of some micro-batches, along a new first axis of one row."""
        for _ in range(count):
            taken = [] if self._infeed is None else jax.tree.leaves(self._infeed.take(1))
            yield [*(value[None] for value in self._inputs), *taken]


@dataclass(frozen=True)
class Graph:
    """The graph of the stages.

    Attributes:
        rows: the inputs, by name.
        outputs: the outputs of the last stage.
        minimised: the result of the optimizer function; `None` without one.
        last: index of the last stage; each concurrent function counts as a stage.
    """

    rows: dict[str, keras.KerasTensor]
    outputs: PyTree
    minimised: OptimizerFunctionOutput | None
    last: int


def trace(
    stages: Stages, optimizer_function: Callable[..., PyTree] | None, data: PipelineInput
) -> Graph:
    """Call stages on symbolic tensors.

    Raises:
        TypeError: if the optimizer function does not return an `OptimizerFunctionOutput`.
        ValueError: if a stage returns no tensor.
    """
    rows = {
        f"given_{number}": keras.Input(spec.shape, dtype=str(spec.dtype), name=f"given_{number}")
        for number, spec in enumerate(data.specs)
    }
    with convoy.PipelineStage(0):
        args, kwargs = data.arguments([JaxOperation(lambda row: row[0])(x) for x in rows.values()])
    number, last = 0, sum(map(len, stages)) - 1
    outputs: PyTree = None
    for functions in stages:
        found = []
        for function in functions:
            with convoy.PipelineStage(number):
                found.append(_call(function, args, kwargs, number, is_last=number == last))
            number += 1
        outputs = found[0] if len(found) == 1 else _concatenated(found)
        args, kwargs = as_arguments(outputs)
    minimised = None
    if optimizer_function is not None:
        with convoy.PipelineStage(last):
            minimised = check_minimised(optimizer_function(*args, **kwargs))
        if not is_symbolic(minimised.loss):
            raise ValueError(f"The loss is {minimised.loss!r}. Return a tensor of the last stage.")
    return Graph(rows, outputs, minimised, last)


def as_row(value: PyTree, like: keras.KerasTensor) -> keras.KerasTensor:
    """Return a tensor of the last stage, or a number, as one row."""
    if is_symbolic(value):
        return JaxOperation(lambda tensor: tensor[None])(value)
    return JaxOperation(lambda _: jnp.asarray(value)[None])(like)


def _call(
    function: Callable[..., PyTree],
    args: list[PyTree],
    kwargs: dict[str, PyTree],
    number: int,
    *,
    is_last: bool,
) -> PyTree:
    outputs = function(*args, **kwargs)
    leaves, structure = jax.tree.flatten(outputs)
    tensors = [leaf for leaf in leaves if is_symbolic(leaf)]
    given = {id(leaf) for leaf in jax.tree.leaves((args, kwargs))}
    if not tensors and not is_last:
        raise ValueError(
            f"Stage {number} returns nothing that depends on its arguments. Return a tensor."
        )
    if tensors and all(id(tensor) in given for tensor in tensors):
        # A stage without computation: an identity operation makes it a stage of the graph.
        identity = JaxOperation(lambda tensor: tensor)(tensors[0])
        leaves = [identity if leaf is tensors[0] else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, leaves)


def _concatenated(found: list[PyTree]) -> list[PyTree]:
    """Return the results of concurrent functions, one after the other."""
    if any(isinstance(outputs, dict) for outputs in found):
        raise ValueError("A function of a concurrent stage returns a dict. Return a tuple.")
    return [output for outputs in found for output in as_list(outputs)]


def _canonical(array: np.ndarray) -> np.ndarray:
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
