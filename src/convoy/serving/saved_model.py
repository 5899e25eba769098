"""Export of a model as a TensorFlow SavedModel whose program is StableHLO."""

from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from convoy.serving.forward_pass import input_shapes, model_variables, stateless_forward
from convoy.serving.signature import Signature
from convoy.serving.tensorflow_methods import DEFAULT_SIGNATURE
from tensorflow.compiler.tf2xla.python import xla


def write_saved_model(model: keras.Model, signature: Signature, folder: Path) -> None:
    """Write a SavedModel that TensorFlow and TensorFlow Serving load, for any batch size."""
    weights = [variable.value for variable in model_variables(model)]
    weight_shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in weights]
    (batch,) = jax.export.symbolic_shape("batch")
    exporting = jax.export.export(jax.jit(stateless_forward(model)), platforms=("cpu", "cuda"))
    exported = exporting(weight_shapes, *input_shapes(signature.inputs, batch))
    module = tf.Module()
    module.weights = [tf.Variable(np.asarray(value)) for value in weights]
    # The exported program has no parameters for unused arguments.
    kept = list(exported.module_kept_var_idx)

    def call(**inputs: Any) -> dict[str, Any]:
        arguments = [*module.weights, *(inputs[spec.name] for spec in signature.inputs)]
        results = xla.call_module(
            [tf.convert_to_tensor(arguments[place]) for place in kept],
            version=exported.calling_convention_version,
            module=exported.mlir_module_serialized,
            Tout=[tf.dtypes.as_dtype(spec.dtype) for spec in signature.outputs],
            Sout=[[None, *spec.shape] for spec in signature.outputs],
            platforms=[platform.upper() for platform in exported.platforms],
        )
        names = [spec.name for spec in signature.outputs]
        return dict(zip(names, results, strict=True))

    specs = {
        spec.name: tf.TensorSpec([None, *spec.shape], spec.dtype, spec.name)
        for spec in signature.inputs
    }
    module.call = tf.function(call, autograph=False)
    concrete = module.call.get_concrete_function(**specs)
    tf.saved_model.save(module, str(folder), signatures={DEFAULT_SIGNATURE: concrete})
