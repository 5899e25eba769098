"""A forward pass as an ONNX graph, operation by operation.

The pass is traced at two sizes of batch. A size that differs between the traces is the batch; it
stays open in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from convoy.jaxpr import bind, read
from convoy.serving.forward import Forward
from convoy.serving.signature import Signature
from jax.extend.core import JaxprEqn, Var
from onnx import helper, numpy_helper

OPSET = 18
Shapes = tuple[Sequence[int], Sequence[int]]


class OnnxFormError(ValueError):
    """An operation has no form in ONNX that is known here."""


class Graph:
    """An ONNX graph that grows.

    Args:
        passes: the same forward pass at two sizes of batch.
        signature: names of inputs and outputs.
    """

    def __init__(self, passes: tuple[Forward, Forward], signature: Signature) -> None:
        self._passes = passes
        self._signature = signature
        self.nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._names: dict[Var, str] = {}
        self._known: list[dict[Var, Any]] = [
            forward.trace.constants | dict(zip(forward.needed, forward.constants, strict=True))
            for forward in passes
        ]
        self._batch: str | None = None

    def build(self) -> Any:
        """Return the whole model.

        Raises:
            OnnxFormError: if there is an operation without one.
        """
        from convoy.serving.onnx_operations import OPERATIONS

        first, second = self._passes
        if len(first.equations) != len(second.equations):
            raise OnnxFormError("the model does another thing for another size of batch")
        names = [tensor.name for tensor in self._signature.inputs]
        self._names.update(zip(first.inputs, names, strict=True))
        for one, other in zip(first.equations, second.equations, strict=True):
            # What has the size of the batch is left to the graph, although it is known.
            same = [var.aval for var in one.outvars] == [var.aval for var in other.outvars]
            if same and self._is_known(one, 0) and self._is_known(other, 1):
                continue
            name = one.primitive.name
            if name not in OPERATIONS:
                raise OnnxFormError(f"the operation {name!r} has no form in ONNX here")
            OPERATIONS[name](self, Step(self, one, other))
        for tensor, atom in zip(self._signature.outputs, first.trace.outputs, strict=True):
            self.nodes.append(helper.make_node("Identity", [self.name(atom, 0)], [tensor.name]))
        return self._model()

    def _is_known(self, equation: JaxprEqn, which: int) -> bool:
        """Compute an equation right now, if it depends on nothing that comes with a request."""
        known = self._known[which]
        variables = [atom for atom in equation.invars if isinstance(atom, Var)]
        if not all(var in known for var in variables):
            return False
        bind(equation, [read(atom, known) for atom in equation.invars], known)
        return True

    def constant(self, value: Any) -> str:
        """Add an array that every call uses."""
        array = np.asarray(value)
        name = f"constant_{len(self._initializers)}"
        self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def name(self, atom: Any, which: int = 0) -> str:
        """Return the name of a value in the graph."""
        if not isinstance(atom, Var):
            return self.constant(np.asarray(atom.val, atom.aval.dtype))
        if atom not in self._names:
            self._names[atom] = self.constant(np.asarray(self._known[which][atom]))
        return self._names[atom]

    def value(self, atom: Any) -> np.ndarray | None:
        """Return a value that is known before any request, or nothing."""
        if not isinstance(atom, Var):
            return np.asarray(atom.val, atom.aval.dtype)
        found = self._known[0].get(atom)
        return None if found is None else np.asarray(found)

    def add(self, operation: str, *inputs: str, result: Var | None = None, **settings: Any) -> str:
        """Add a node, and return the name of its result."""
        name = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], **settings))
        if result is not None:
            self._names[result] = name
        return name

    def shape(self, shapes: Shapes) -> str:
        """Return a shape as a value in the graph, in which the batch is that of the request."""
        one, other = shapes
        if list(one) == list(other):
            return self.constant(np.array(one, np.int64))
        if self._batch is None:
            first = self._signature.inputs[0].name
            whole = self.add("Shape", first)
            self._batch = self.add("Gather", whole, self.constant(np.array([0], np.int64)))
        sizes = [forward.input_shapes[0].shape[0] for forward in self._passes]
        parts = []
        for a, b in zip(one, other, strict=True):
            if a == b:
                parts.append(self.constant(np.array([a], np.int64)))
            elif a % sizes[0] == 0 and a // sizes[0] * sizes[1] == b:
                times = self.constant(np.array([a // sizes[0]], np.int64))
                parts.append(self.add("Mul", self._batch, times))
            else:
                raise OnnxFormError(f"a shape of {list(one)} does not follow the batch")
        return self.add("Concat", *parts, axis=0)

    def _model(self) -> Any:
        def described(tensors: Any) -> list[Any]:
            return [
                helper.make_tensor_value_info(
                    tensor.name,
                    helper.np_dtype_to_tensor_dtype(tensor.numpy_dtype),
                    ["batch", *tensor.shape],
                )
                for tensor in tensors
            ]

        graph = helper.make_graph(
            self.nodes,
            "model",
            described(self._signature.inputs),
            described(self._signature.outputs),
            list(self._initializers.values()),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = 9
        onnx.checker.check_model(model)
        return model


class Step:
    """One equation, at both sizes of batch."""

    def __init__(self, graph: Graph, one: JaxprEqn, other: JaxprEqn) -> None:
        if one.primitive is not other.primitive:
            raise OnnxFormError("the model does another thing for another size of batch")
        self._graph = graph
        self.equation, self.other = one, other

    @property
    def parameters(self) -> dict[str, Any]:
        return self.equation.params

    @property
    def atoms(self) -> Sequence[Any]:
        return self.equation.invars

    @property
    def inputs(self) -> list[str]:
        return [self._graph.name(atom) for atom in self.equation.invars]

    @property
    def result(self) -> Any:
        return self.equation.outvars[0]

    @property
    def result_shapes(self) -> Shapes:
        shapes: list[Any] = [self.equation.outvars[0].aval, self.other.outvars[0].aval]
        return shapes[0].shape, shapes[1].shape

    def shapes(self, read_shape: Callable[[JaxprEqn], Sequence[int]]) -> Shapes:
        return read_shape(self.equation), read_shape(self.other)
