"""Exported models for other servers: ONNX, and TensorFlow's SavedModel."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
from convoy import cpu
from convoy.serving.errors import ArtifactError
from convoy.serving.forward import Forward, input_structure
from convoy.serving.signature import DEFAULT_SIGNATURE, Signature

ONNX_FILE = "model.onnx"
# Two sizes that no layer has by chance.
_TRACED = (11, 13)


def check_installed(format: str) -> None:
    """Refuse a format whose package is not there.

    Raises:
        ValueError: that says what to install.
    """
    package = {"convoy": "flatbuffers", "onnx": "onnx", "saved_model": "tensorflow"}[format]
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"The format {format} needs the package {package}. Install it with pip.")


def write_onnx(model: keras.Model, signature: Signature, folder: Path) -> None:
    """Write `model.onnx`, with batch normalisation folded and the batch open.

    Raises:
        ArtifactError: if the model has an operation that has no form in ONNX here.
    """
    import onnx
    from convoy.serving.onnx_graph import Graph, OnnxFormError

    one, other = (Forward(model, size, cpu.fold) for size in _TRACED)
    try:
        made = Graph((one, other), signature).build()
    except OnnxFormError as error:
        raise ArtifactError(f"{model.name!r} cannot be written as ONNX: {error}.") from None
    onnx.save(made, folder / ONNX_FILE)


def write_saved_model(model: keras.Model, signature: Signature, folder: Path) -> None:
    """Write a SavedModel that TensorFlow and TensorFlow Serving load; its program is StableHLO."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python import xla

    structure = jax.tree.structure(input_structure(model))
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    split = len(model.trainable_variables)

    def forward(weights: list[Any], *inputs: Any) -> list[Any]:
        x = jax.tree.unflatten(structure, inputs)
        outputs, _ = model.stateless_call(weights[:split], weights[split:], x, training=False)
        return jax.tree.leaves(outputs)

    (batch,) = jax.export.symbolic_shape("batch")
    shapes = [
        jax.ShapeDtypeStruct((batch, *tensor.shape), tensor.numpy_dtype)
        for tensor in signature.inputs
    ]
    weights = [jax.ShapeDtypeStruct(v.value.shape, v.value.dtype) for v in variables]
    exported = jax.export.export(jax.jit(forward), platforms=("cpu", "cuda"))(weights, *shapes)
    module = tf.Module()
    module.weights = [tf.Variable(np.asarray(variable.value)) for variable in variables]
    kept = list(exported.module_kept_var_idx)

    def call(**inputs: Any) -> dict[str, Any]:
        arguments = [*module.weights, *(inputs[tensor.name] for tensor in signature.inputs)]
        results = xla.call_module(
            [tf.convert_to_tensor(arguments[place]) for place in kept],
            version=exported.calling_convention_version,
            module=exported.mlir_module_serialized,
            Tout=[tf.dtypes.as_dtype(tensor.dtype) for tensor in signature.outputs],
            Sout=[[None, *tensor.shape] for tensor in signature.outputs],
            platforms=[platform.upper() for platform in exported.platforms],
        )
        names = [tensor.name for tensor in signature.outputs]
        return dict(zip(names, results, strict=True))

    specs = {
        tensor.name: tf.TensorSpec([None, *tensor.shape], tensor.dtype, tensor.name)
        for tensor in signature.inputs
    }
    module.call = tf.function(call, autograph=False)
    concrete = module.call.get_concrete_function(**specs)
    tf.saved_model.save(module, str(folder), signatures={DEFAULT_SIGNATURE: concrete})
