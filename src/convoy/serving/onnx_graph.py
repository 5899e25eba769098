"""Builder of an ONNX graph from the equations of a forward pass.

The forward pass is traced at two batch sizes. A dimension that differs between the two traces is
the batch, or a multiple of it, and stays symbolic in the graph:

    trace at 11    (11, 8, 8, 3)    (11, 192)
    trace at 13    (13, 8, 8, 3)    (13, 192)
    graph          (batch, 8, 8, 3) (batch, 192)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
import onnx
from convoy.jaxpr import bind, read
from convoy.serving.forward_pass import ForwardPass
from convoy.serving.signature import Signature, TensorSpec
from jax.extend.core import JaxprEqn, Literal, Var
from onnx import helper, numpy_helper

OPSET = 18
IR_VERSION = 9
Atom = Var | Literal
Shapes = tuple[Sequence[int], Sequence[int]]
"""A shape at both batch sizes."""


class UnsupportedOperationError(ValueError):
    """An operation cannot be converted to ONNX."""


def array_type(atom: Atom) -> jax.core.ShapedArray:
    """Return the type and shape of a value."""
    return cast(jax.core.ShapedArray, atom.aval)


class Graph:
    """An ONNX graph under construction.

    Args:
        passes: the same forward pass at two batch sizes.
        signature: the inputs and outputs.
    """

    def __init__(self, passes: tuple[ForwardPass, ForwardPass], signature: Signature) -> None:
        self._passes = passes
        self._signature = signature
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        names = [spec.name for spec in signature.inputs]
        self._names: dict[Var, str] = dict(zip(passes[0].input_vars, names, strict=True))
        # Values that do not depend on the inputs, at both batch sizes.
        self._known: list[dict[Var, Any]] = [
            forward.trace.constants
            | dict(zip(forward.constant_vars, forward.constants, strict=True))
            for forward in passes
        ]
        self._batch: str | None = None

    def fold(self, step: Step) -> bool:
        """Evaluate an equation whose result depends on neither the inputs nor the batch size.

        Returns:
            Whether the equation was evaluated; otherwise it needs a node in the graph.
        """
        shapes = [[var.aval for var in equation.outvars] for equation in step.equations]
        if shapes[0] != shapes[1]:
            return False
        folded = [self._evaluate(equation, i) for i, equation in enumerate(step.equations)]
        return all(folded)

    def _evaluate(self, equation: JaxprEqn, which: int) -> bool:
        known = self._known[which]
        variables = [atom for atom in equation.invars if isinstance(atom, Var)]
        if not all(var in known for var in variables):
            return False
        bind(equation, [read(atom, known) for atom in equation.invars], known)
        return True

    def constant(self, value: Any) -> str:
        """Add a constant array, and return its name."""
        array = np.asarray(value)
        name = f"constant_{len(self._initializers)}"
        self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def name(self, atom: Atom) -> str:
        """Return the name of a value in the graph."""
        if not isinstance(atom, Var):
            return self.constant(np.asarray(atom.val, array_type(atom).dtype))
        if atom not in self._names:
            self._names[atom] = self.constant(np.asarray(self._known[0][atom]))
        return self._names[atom]

    def value(self, atom: Atom) -> np.ndarray | None:
        """Return a value that does not depend on the inputs; `None` for one that does."""
        if not isinstance(atom, Var):
            return np.asarray(atom.val, array_type(atom).dtype)
        found = self._known[0].get(atom)
        return None if found is None else np.asarray(found)

    def add(self, operation: str, *inputs: str, result: Var | None = None, **settings: Any) -> str:
        """Add a node, and return the name of its result.

        Args:
            operation: the ONNX operator.
            inputs: names of the inputs.
            result: the variable of the trace that the node computes, if any.
            settings: the operator's attributes.
        """
        name = f"value_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operation, list(inputs), [name], **settings))
        if result is not None:
            self._names[result] = name
        return name

    def shape(self, shapes: Shapes) -> str:
        """Return the name of a shape, computed from the batch size of the inputs where needed."""
        one, other = shapes
        if list(one) == list(other):
            return self.constant(np.array(one, np.int64))
        if self._batch is None:
            input_shape = self.add("Shape", self._signature.inputs[0].name)
            self._batch = self.add("Gather", input_shape, self.constant(np.array([0], np.int64)))
        sizes = [forward.input_shapes[0].shape[0] for forward in self._passes]
        parts = []
        for a, b in zip(one, other, strict=True):
            if a == b:
                parts.append(self.constant(np.array([a], np.int64)))
            elif a % sizes[0] == 0 and a // sizes[0] * sizes[1] == b:
                times = self.constant(np.array([a // sizes[0]], np.int64))
                parts.append(self.add("Mul", self._batch, times))
            else:
                raise UnsupportedOperationError(
                    f"a shape of {list(one)} is not a multiple of the batch size"
                )
        return self.add("Concat", *parts, axis=0)

    def model(self) -> onnx.ModelProto:
        """Return the finished model."""
        for spec, atom in zip(self._signature.outputs, self._passes[0].trace.outputs, strict=True):
            self._nodes.append(helper.make_node("Identity", [self.name(atom)], [spec.name]))

        def described(specs: Sequence[TensorSpec]) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(
                    spec.name,
                    helper.np_dtype_to_tensor_dtype(spec.numpy_dtype),
                    ["batch", *spec.shape],
                )
                for spec in specs
            ]

        graph = helper.make_graph(
            self._nodes,
            "model",
            described(self._signature.inputs),
            described(self._signature.outputs),
            list(self._initializers.values()),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model)
        return model


class Step:
    """One equation of the forward pass, at both batch sizes."""

    def __init__(self, graph: Graph, one: JaxprEqn, other: JaxprEqn) -> None:
        if one.primitive is not other.primitive:
            raise UnsupportedOperationError("the operations depend on the batch size")
        self._graph = graph
        self.equations = (one, other)

    @property
    def parameters(self) -> dict[str, Any]:
        return self.equations[0].params

    @property
    def has_batch_parameters(self) -> bool:
        """Whether the parameters differ between the batch sizes."""
        return self.equations[0].params != self.equations[1].params

    @property
    def atoms(self) -> Sequence[Atom]:
        return self.equations[0].invars

    @property
    def inputs(self) -> list[str]:
        return [self._graph.name(atom) for atom in self.atoms]

    @property
    def result(self) -> Var:
        return self.equations[0].outvars[0]

    @property
    def result_shapes(self) -> Shapes:
        return self.shapes(lambda equation: array_type(equation.outvars[0]).shape)

    def shapes(self, read_shape: Callable[[JaxprEqn], Sequence[int]]) -> Shapes:
        one, other = self.equations
        return read_shape(one), read_shape(other)
