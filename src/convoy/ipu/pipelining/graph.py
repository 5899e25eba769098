"""What the stages of a pipeline compute, found by calling them on tensors without values.

The tensors that they are called on are made of rows, each of which is a whole micro-batch. So
stages see the infeed's elements as they are, with an axis for the batch or without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import convoy
import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy.estimator.function import Function, is_tensor
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue
from convoy.ipu.pipelining.words import OptimizerFunctionOutput

Stages = tuple[tuple[Callable[..., Any], ...], ...]
"""The functions of each stage: one, or several that work on the same micro-batch."""


class Data:
    """What the first stage is given: inputs that stay the same, then an element of the infeed.

    Args:
        inputs: arrays or numbers.
        infeed: `None` is none.

    Raises:
        ValueError: if there is neither.
    """

    def __init__(self, inputs: list[Any], infeed: IPUInfeedQueue | None) -> None:
        self._infeed = infeed
        self._inputs = [_array(value) for value in inputs]
        element = () if infeed is None else infeed.shapes()
        parts = list(element) if isinstance(element, (list, tuple)) else [element]
        self._is_named = len(parts) == 1 and _has_names(parts[0])
        self.specs, self._structure = jax.tree.flatten((self._inputs, parts))
        """The shapes and types of all arrays."""
        if not self.specs:
            raise ValueError(
                "The first stage is given nothing. Pass inputs, an infeed_queue, or both."
            )

    @property
    def key(self) -> tuple:
        """The same for data of the same shapes, types and structure."""
        return str(self._structure), tuple((tuple(s.shape), str(s.dtype)) for s in self.specs)

    def arguments(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return values, one for each array, as the first stage takes them."""
        inputs, parts = jax.tree.unflatten(self._structure, values)
        return (inputs, parts[0]) if self._is_named else ([*inputs, *parts], {})

    def rows(self, count: int) -> Iterator[list[np.ndarray]]:
        """Return the arrays of so many micro-batches, each along a new first axis of one row.

        Raises:
            ValueError: if an element is of another shape.
        """
        for _ in range(count):
            taken = [] if self._infeed is None else jax.tree.leaves(self._infeed.take(1))
            row = [*(value[None] for value in self._inputs), *taken]
            for value, spec in zip(row, self.specs, strict=True):
                if value.shape[1:] != spec.shape:
                    raise ValueError(
                        f"The elements of the data set differ in shape: {value.shape[1:]} after "
                        f"{tuple(spec.shape)}. Leave out its last, incomplete batch."
                    )
            yield row


@dataclass(frozen=True)
class Graph:
    """What stages compute.

    Attributes:
        rows: the inputs, by name.
        outputs: what the last stage returned.
        told: what the optimizer function returned; `None` if there is none.
        last: the number of the last stage, where each of concurrent functions has its own.
    """

    rows: dict[str, keras.KerasTensor]
    outputs: Any
    told: OptimizerFunctionOutput | None
    last: int


def trace(stages: Stages, optimizer_function: Callable[..., Any] | None, data: Data) -> Graph:
    """Call stages on tensors without values.

    Raises:
        TypeError: if the optimizer function returns something else than it should.
        ValueError: if a stage hands nothing on.
    """
    rows = {
        f"given_{number}": keras.Input(spec.shape, dtype=str(spec.dtype), name=f"given_{number}")
        for number, spec in enumerate(data.specs)
    }
    with convoy.PipelineStage(0):
        args, named = data.arguments([Function(lambda row: row[0])(x) for x in rows.values()])
    number, last = 0, sum(map(len, stages)) - 1
    outputs: Any = None
    for functions in stages:
        found = []
        for function in functions:
            with convoy.PipelineStage(number):
                found.append(_call(function, args, named, number, is_last=number == last))
            number += 1
        outputs = found[0] if len(found) == 1 else _joined(found)
        args, named = _as_arguments(outputs)
    told = None
    if optimizer_function is not None:
        with convoy.PipelineStage(last):
            told = optimizer_function(*args, **named)
        _check_told(told)
    return Graph(rows, outputs, told, last)


def as_row(value: Any, like: keras.KerasTensor) -> keras.KerasTensor:
    """Return a tensor of the last stage, or a number, as one row."""
    if is_tensor(value):
        return Function(lambda tensor: tensor[None])(value)
    return Function(lambda _: jnp.asarray(value)[None])(like)


def _call(
    function: Callable[..., Any],
    args: list[Any],
    named: dict[str, Any],
    number: int,
    *,
    is_last: bool,
) -> Any:
    outputs = function(*args, **named)
    leaves, structure = jax.tree.flatten(outputs)
    tensors = [leaf for leaf in leaves if is_tensor(leaf)]
    given = {id(leaf) for leaf in jax.tree.leaves((args, named))}
    if not tensors and not is_last:
        raise ValueError(
            f"Stage {number} returns nothing that depends on its arguments. Return tensors, for "
            "the next one."
        )
    if tensors and all(id(tensor) in given for tensor in tensors):
        # It computes nothing, but is a stage.
        kept = Function(lambda tensor: tensor)(tensors[0])
        leaves = [kept if leaf is tensors[0] else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, leaves)


def _as_arguments(outputs: Any) -> tuple[list[Any], dict[str, Any]]:
    if _has_names(outputs):
        return [], dict(outputs)
    if outputs is None:
        return [], {}
    return (list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]), {}


def _joined(found: list[Any]) -> list[Any]:
    """Return what concurrent functions returned, one after the other."""
    joined: list[Any] = []
    for outputs in found:
        args, named = _as_arguments(outputs)
        if named:
            raise ValueError(
                "A function of a concurrent stage returns a dict, but what such functions return "
                "is put together in their order. Return tensors."
            )
        joined += args
    return joined


def _check_told(told: Any) -> None:
    if not isinstance(told, OptimizerFunctionOutput):
        raise TypeError(
            f"optimizer_function returned {type(told).__name__}, not an OptimizerFunctionOutput."
        )
    if not is_tensor(told.loss):
        raise ValueError(
            f"The loss is {told.loss!r}, which no stage computes. Return one that depends on what "
            "the last stage returns."
        )


def _has_names(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
