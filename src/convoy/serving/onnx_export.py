"""Export of a model as ONNX: the JAX operations of convolutional networks as ONNX operators."""

import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import onnx
from convoy import cpu
from convoy.serving.errors import ArtifactError
from convoy.serving.forward_pass import ForwardPass
from convoy.serving.onnx_graph import Graph, Step, UnsupportedOperationError, array_type
from convoy.serving.signature import Signature
from jax.extend.core import JaxprEqn
from onnx import helper

FILE = "model.onnx"
# Two batch sizes that differ from every other dimension of usual models.
BATCH_SIZES = (11, 13)

Operation = Callable[[Graph, Step], None]


def write_onnx(model: keras.Model, signature: Signature, folder: Path) -> None:
    """Write `model.onnx`, with folded batch normalisation, for any batch size.

    Raises:
        ArtifactError: if the model has an operation that cannot be converted.
    """
    one, other = (ForwardPass(model, size, cpu.fold) for size in BATCH_SIZES)
    try:
        onnx.save(_convert_model((one, other), signature), folder / FILE)
    except UnsupportedOperationError as error:
        raise ArtifactError(
            f"{model.name!r} cannot be exported as ONNX: {error}. Pass another format."
        ) from None


def _convert_model(
    passes: tuple[ForwardPass, ForwardPass], signature: Signature
) -> onnx.ModelProto:
    graph = Graph(passes, signature)
    if len(passes[0].equations) != len(passes[1].equations):
        raise UnsupportedOperationError("the operations depend on the batch size")
    for one, other in zip(passes[0].equations, passes[1].equations, strict=True):
        step = Step(graph, one, other)
        if graph.fold(step):
            continue
        name = one.primitive.name
        if name not in OPERATIONS:
            raise UnsupportedOperationError(f"the operation {name!r} cannot be converted")
        OPERATIONS[name](graph, step)
    return graph.model()


def _same(name: str) -> Operation:
    """Return the conversion to an operator that takes the same operands."""

    def operation(graph: Graph, step: Step) -> None:
        graph.add(name, *step.inputs, result=step.result)

    return operation


def _reduce(name: str) -> Operation:
    def operation(graph: Graph, step: Step) -> None:
        axes = graph.constant(np.array(step.parameters["axes"], np.int64))
        graph.add(name, step.inputs[0], axes, keepdims=0, result=step.result)

    return operation


def _reshape(graph: Graph, step: Step) -> None:
    if step.parameters.get("dimensions") is not None:
        raise UnsupportedOperationError("a reshape that reorders elements cannot be converted")
    graph.add("Reshape", step.inputs[0], graph.shape(step.result_shapes), result=step.result)


def _broadcast(graph: Graph, step: Step) -> None:
    def with_ones(equation: JaxprEqn) -> list[int]:
        """Return the operand's shape with ones for the new axes."""
        shape = [1] * len(equation.params["shape"])
        axes = equation.params["broadcast_dimensions"]
        for size, axis in zip(array_type(equation.invars[0]).shape, axes, strict=True):
            shape[axis] = size
        return shape

    small = graph.add("Reshape", step.inputs[0], graph.shape(step.shapes(with_ones)))
    graph.add("Expand", small, graph.shape(step.result_shapes), result=step.result)


def _transpose(graph: Graph, step: Step) -> None:
    order = list(step.parameters["permutation"])
    graph.add("Transpose", step.inputs[0], perm=order, result=step.result)


def _convert(graph: Graph, step: Step) -> None:
    target = helper.np_dtype_to_tensor_dtype(np.dtype(step.parameters["new_dtype"]))
    graph.add("Cast", step.inputs[0], to=target, result=step.result)


def _concatenate(graph: Graph, step: Step) -> None:
    axis = step.parameters["dimension"]
    graph.add("Concat", *step.inputs, axis=axis, result=step.result)


def _pad(graph: Graph, step: Step) -> None:
    ends = step.parameters["padding_config"]
    if any(low < 0 or high < 0 or inner for low, high, inner in ends):
        raise UnsupportedOperationError("negative or interior padding cannot be converted")
    pads = np.array([low for low, _, _ in ends] + [high for _, high, _ in ends], np.int64)
    graph.add("Pad", step.inputs[0], graph.constant(pads), step.inputs[1], result=step.result)


def _slice(graph: Graph, step: Step) -> None:
    if step.has_batch_parameters:
        raise UnsupportedOperationError("a slice of the batch cannot be converted")
    starts, limits = step.parameters["start_indices"], step.parameters["limit_indices"]
    strides = step.parameters["strides"] or [1] * len(starts)
    values = [starts, limits, range(len(starts)), strides]
    parts = [graph.constant(np.array(list(part), np.int64)) for part in values]
    graph.add("Slice", step.inputs[0], *parts, result=step.result)


def _select(graph: Graph, step: Step) -> None:
    which, when_false, when_true = step.inputs
    if len(step.atoms) != 3 or array_type(step.atoms[0]).dtype != jnp.bool_:
        raise UnsupportedOperationError("a select with more than two cases cannot be converted")
    graph.add("Where", which, when_true, when_false, result=step.result)


def _rsqrt(graph: Graph, step: Step) -> None:
    root = graph.add("Sqrt", step.inputs[0])
    graph.add("Reciprocal", root, result=step.result)


def _erfc(graph: Graph, step: Step) -> None:
    one = graph.constant(np.array(1, array_type(step.atoms[0]).dtype))
    graph.add("Sub", one, graph.add("Erf", step.inputs[0]), result=step.result)


def _square(graph: Graph, step: Step) -> None:
    graph.add("Mul", step.inputs[0], step.inputs[0], result=step.result)


def _integer_power(graph: Graph, step: Step) -> None:
    exponent = np.array(step.parameters["y"], array_type(step.atoms[0]).dtype)
    graph.add("Pow", step.inputs[0], graph.constant(exponent), result=step.result)


def _clamp(graph: Graph, step: Step) -> None:
    low, x, high = step.inputs
    graph.add("Min", graph.add("Max", x, low), high, result=step.result)


def _dot(graph: Graph, step: Step) -> None:
    (left, right), (left_batch, right_batch) = step.parameters["dimension_numbers"]
    left_rank, right_rank = (array_type(atom).ndim for atom in step.atoms)
    if (left_rank, right_rank, *left, *right) == (2, 2, 1, 0):
        graph.add("MatMul", *step.inputs, result=step.result)
        return
    # Each axis has a letter; the axes of a pair have the same one.
    left_names = list(string.ascii_lowercase[:left_rank])
    right_names = list(string.ascii_lowercase[left_rank : left_rank + right_rank])
    for a, b in zip((*left_batch, *left), (*right_batch, *right), strict=True):
        right_names[b] = left_names[a]
    out = [left_names[axis] for axis in left_batch]
    out += [name for name in left_names if name not in right_names]
    out += [name for name in right_names if name not in left_names]
    equation = f"{''.join(left_names)},{''.join(right_names)}->{''.join(out)}"
    graph.add("Einsum", *step.inputs, equation=equation, result=step.result)


def _convolution(graph: Graph, step: Step) -> None:
    parameters = step.parameters
    lhs, rhs, out = parameters["dimension_numbers"]
    if set(parameters["lhs_dilation"]) - {1} or parameters["batch_group_count"] != 1:
        raise UnsupportedOperationError("a transposed convolution cannot be converted")
    source = _transposed(graph, graph.name(step.atoms[0]), lhs)
    weights = graph.value(step.atoms[1])
    if weights is None:
        kernel = _transposed(graph, graph.name(step.atoms[1]), rhs)
    else:
        kernel = graph.constant(np.transpose(weights, rhs))
    ends = parameters["padding"]
    made = graph.add(
        "Conv",
        source,
        kernel,
        strides=list(parameters["window_strides"]),
        dilations=list(parameters["rhs_dilation"]),
        group=parameters["feature_group_count"],
        pads=[low for low, _ in ends] + [high for _, high in ends],
    )
    graph.add("Transpose", made, perm=_inverse(out), result=step.result)


def _pool(name: str) -> Operation:
    def operation(graph: Graph, step: Step) -> None:
        parameters = step.parameters
        window, strides = parameters["window_dimensions"], parameters["window_strides"]
        dilations = [*parameters["base_dilation"], *parameters["window_dilation"]]
        axes = [axis for axis in range(len(window)) if axis not in (0, _channels(window))]
        if set(dilations) - {1} or window[0] != 1 or window[_channels(window)] != 1:
            raise UnsupportedOperationError(
                "a dilated pooling, or one over samples or channels, cannot be converted"
            )
        order = [0, _channels(window), *axes]
        ends = parameters["padding"]
        settings: dict[str, Any] = {
            "kernel_shape": [window[axis] for axis in axes],
            "strides": [strides[axis] for axis in axes],
            "pads": [ends[axis][0] for axis in axes] + [ends[axis][1] for axis in axes],
        }
        if name == "AveragePool":
            settings["count_include_pad"] = 1
        made = graph.add(name, _transposed(graph, step.inputs[0], order), **settings)
        if name == "AveragePool":
            # JAX's operation is the sum of the window.
            count = np.array(np.prod(settings["kernel_shape"]), array_type(step.result).dtype)
            made = graph.add("Mul", made, graph.constant(count))
        graph.add("Transpose", made, perm=_inverse(order), result=step.result)

    return operation


def _channels(window: Sequence[int]) -> int:
    """Return the axis of the channels, which is not pooled: the last one if it can be."""
    return len(window) - 1 if window[-1] == 1 else 1


def _transposed(graph: Graph, name: str, order: Sequence[int]) -> str:
    return graph.add("Transpose", name, perm=list(order))


def _inverse(order: Sequence[int]) -> list[int]:
    return [int(axis) for axis in np.argsort(order)]


_SAME = {
    "abs": "Abs", "add": "Add", "add_any": "Add", "ceil": "Ceil", "copy": "Identity", "cos": "Cos",
    "copy_p": "Identity", "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "log": "Log", "lt": "Less",
    "logistic": "Sigmoid", "max": "Max", "min": "Min", "mul": "Mul", "neg": "Neg", "not": "Not",
    "pow": "Pow", "sign": "Sign", "sin": "Sin", "sqrt": "Sqrt", "stop_gradient": "Identity",
    "sub": "Sub", "tanh": "Tanh",
}  # fmt: skip

OPERATIONS: dict[str, Operation] = {
    **{name: _same(other) for name, other in _SAME.items()},
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "convert_element_type": _convert,
    "dot_general": _dot,
    "erfc": _erfc,
    "expand_dims": _reshape,
    "integer_pow": _integer_power,
    "pad": _pad,
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_window_max": _pool("MaxPool"),
    "reduce_window_sum": _pool("AveragePool"),
    "reshape": _reshape,
    "rsqrt": _rsqrt,
    "select_n": _select,
    "slice": _slice,
    "square": _square,
    "squeeze": _reshape,
    "transpose": _transpose,
}
