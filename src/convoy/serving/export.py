"""Export of a Keras model as a new version in a model's folder."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import jax
import keras
import numpy as np
from convoy import cpu, devices
from convoy import precision as precisions
from convoy.arguments import require_package
from convoy.serving import artifact
from convoy.serving.accuracy import (
    ExportedPrecision,
    check_finite,
    check_samples,
    measure_difference,
    relative_difference,
)
from convoy.serving.artifact import Artifact, Program
from convoy.serving.batch_sizes import BATCH_SIZES
from convoy.serving.forward_pass import (
    ForwardPass,
    input_shapes,
    input_specs,
    input_structure,
    model_variables,
    output_structure,
    stateless_forward,
)
from convoy.serving.model_precision import FLOAT32, convert, policies_of
from convoy.serving.signature import Arrays, Signature

logger = logging.getLogger("convoy.serving")

Format = Literal["convoy", "onnx", "saved_model"]
PLATFORMS = ("cpu", "cuda", "tpu")
_PACKAGES = {"convoy": "flatbuffers", "onnx": "onnx", "saved_model": "tensorflow"}


def export(
    model: keras.Model,
    folder: str | Path,
    *,
    version: int | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    class_names: Sequence[str] = (),
    preprocessing: Callable[[Any], Any] | None = None,
    output_names: Sequence[str] | None = None,
    format: Format = "convoy",
    precision: str | None = None,
    samples: Mapping[str, Any] | Any = None,
) -> Path:
    """Write a model as a new version that `convoy serve` can serve.

    Batch normalisation is folded into convolutions. The model itself is not changed.

    Args:
        model: a functional or sequential model with weights.
        folder: the model's folder; versions are folders `1`, `2`, ... in it. A version is written
            atomically.
        version: the version number; by default the newest plus one.
        batch_sizes: the batch sizes to compile for. A server pads requests to one of them.
        class_names: the names of the classes, for a model with one output of class scores.
        preprocessing: a layer, or a function of a symbolic tensor, from the inputs of requests to
            the model's input. The inputs are `uint8` images of the model's shape, unless this is a
            `keras.Model` with a separate input.
        output_names: names of the outputs; by default the keys of a model that returns a
            dictionary, else `output_0`, `output_1`, ...
        format: `"convoy"`; or `"onnx"` (a folder with `model.onnx`) or `"saved_model"`
            (TensorFlow's), which need the packages onnx and tensorflow.
        precision: the precision to compute in; by default that of the model. One of
            `convoy.precision.PRECISIONS`, such as `"bfloat16"`, or `"auto"` for the fastest one on
            this device. Inputs keep their types, and outputs are float32. The layers that return
            them compute in float32.
        samples: samples on which the outputs are compared with those in float32: an array, or
            arrays by the names of the inputs. The difference is logged and stored.

    Returns:
        The version's folder.

    Raises:
        ValueError: if the model cannot be exported; nothing is written.
        convoy.serving.errors.ArtifactError: if the folder cannot be written.

    Example:
        convoy.export(model, "models/digits", preprocessing=keras.layers.Rescaling(1 / 255))
    """
    plain = _checked(model)
    converted = plain
    if precision is not None:
        converted = convert(plain, devices.find_precision(precision, jax.devices()[0]))
    served = _with_preprocessing(converted, preprocessing)
    sizes = _checked_sizes(batch_sizes)
    names = _output_names(served, output_names)
    _check_classes(served, class_names)
    require_package(_PACKAGES[format], f"The format {format}")
    policies = policies_of(converted)
    if format == "onnx":
        _check_onnx(policies)
    passes = {size: ForwardPass(served, size, cpu.fold) for size in sizes}
    signature = passes[sizes[0]].signature(served, names)
    given = None if samples is None else check_samples(samples, signature)
    reference = served
    if policies != [FLOAT32]:
        in_float32 = _in_float32(plain, converted, required=given is not None)
        reference = _with_preprocessing(in_float32, preprocessing)
    example, rounding = _example(served, reference, signature, precision is not None)
    measured = None if given is None else measure_difference(served, reference, given, max(sizes))
    described = ExportedPrecision(", ".join(policies), rounding, measured)
    if precision is not None or given is not None:
        logger.warning("%s", described)
    if format == "onnx":
        from convoy.serving.onnx_export import write_onnx

        fill = partial(write_onnx, served, signature)
    elif format == "saved_model":
        from convoy.serving.saved_model import write_saved_model

        fill = partial(write_saved_model, served, signature)
    else:
        weights: dict[str, np.ndarray] = {}
        programs = {size: _program(forward, weights) for size, forward in passes.items()}
        classes = tuple(map(str, class_names))
        content = Artifact(signature, programs, weights, example, classes, _about(model), described)
        fill = partial(artifact.write, content, served)
    return artifact.add_version(Path(folder), version, fill)


def _checked(model: keras.Model) -> keras.Model:
    if not isinstance(model, keras.Model):
        raise ValueError(f"export() takes a keras.Model, but received {type(model).__name__}.")
    if not getattr(model, "inputs", None):
        raise ValueError(
            f"{model.name!r} has no known input shape. Only functional and sequential models with "
            "a keras.Input can be exported."
        )
    # A new model without the optimizer, whose state is not exported.
    return keras.Model(input_structure(model), output_structure(model), name=model.name)


def _with_preprocessing(
    model: keras.Model, preprocessing: Callable[[Any], Any] | None
) -> keras.Model:
    if preprocessing is None:
        return model
    specs = input_specs(model)
    if len(specs) != 1:
        raise ValueError(
            f"preprocessing is for models with one input, but {model.name!r} has {len(specs)}. "
            "Leave it out."
        )
    shape, dtype, name = specs[0].shape, "uint8", specs[0].name
    if isinstance(preprocessing, keras.Model) and preprocessing.inputs:
        shape, dtype = preprocessing.inputs[0].shape[1:], preprocessing.inputs[0].dtype
    inputs = keras.Input(shape, dtype=dtype, name=name)
    return keras.Model(inputs, model(preprocessing(inputs)), name=model.name)


def _checked_sizes(sizes: Sequence[int]) -> list[int]:
    if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"batch_sizes={list(sizes)}: pass whole numbers, 1 or more.")
    return sorted(set(sizes))


def _output_names(model: keras.Model, wanted: Sequence[str] | None) -> list[str]:
    outputs = output_structure(model)
    count = len(jax.tree.leaves(outputs))
    if wanted is not None:
        if len(set(wanted)) != count:
            raise ValueError(
                f"output_names={list(wanted)}: the model has {count} outputs. Pass a different "
                "name for each."
            )
        return list(wanted)
    if isinstance(outputs, dict):
        return [str(key) for key in sorted(outputs)]
    return [f"output_{index}" for index in range(count)]


def _check_classes(model: keras.Model, names: Sequence[str]) -> None:
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(output_structure(model))]
    if names and (len(shapes) != 1 or shapes[0][1:] != (len(names),)):
        raise ValueError(
            f"{len(names)} class_names were given, but the model's outputs have the shapes "
            f"{shapes}. Pass a name for each position of the only output."
        )


def _program(forward: ForwardPass, weights: dict[str, np.ndarray]) -> Program:
    """Return the serialised program for all platforms, and add its constants to the weights."""
    constants = [np.asarray(value) for value in forward.constants]
    names = tuple(map(artifact.content_name, constants))
    weights.update(zip(names, constants, strict=True))
    exporting = jax.export.export(jax.jit(forward.run), platforms=PLATFORMS)
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in constants]
    exported = exporting(shapes, *forward.input_shapes)
    return Program(bytes(exported.serialize()), names)


def _check_onnx(policies: Sequence[str]) -> None:
    if any("bfloat16" in policy for policy in policies):
        raise ValueError(
            "ONNX Runtime has no convolutions in bfloat16. Pass precision='float16' or 'float32' "
            "for the format onnx."
        )


def _in_float32(plain: keras.Model, converted: keras.Model, *, required: bool) -> keras.Model:
    """Return the model in float32.

    If it cannot be converted, return `converted`, or raise the error if float32 is `required`.
    """
    if policies_of(plain) == [FLOAT32]:
        return plain
    try:
        return convert(plain, precisions.find(FLOAT32))
    except ValueError:
        if required:
            raise
        return converted


def _example(
    model: keras.Model, reference: keras.Model, signature: Signature, must_be_finite: bool
) -> tuple[Arrays, float]:
    """Return a random sample with the outputs of the model, before folding.

    The second result is the largest relative difference from the outputs of the reference, which
    is the model in float32.
    """
    rng = np.random.default_rng(0)
    arrays: Arrays = {}
    for spec, shape in zip(signature.inputs, input_shapes(signature.inputs, 1), strict=True):
        dtype = spec.numpy_dtype
        values = rng.random(shape.shape) if dtype.kind not in "iub" else rng.integers(0, 2)
        if dtype == np.uint8:
            values = rng.integers(0, 256, shape.shape)
        arrays[spec.name] = np.broadcast_to(values, shape.shape).astype(dtype)
    inputs = list(arrays.values())
    outputs = _outputs(model, inputs)
    expected = outputs if reference is model else _outputs(reference, inputs)
    differences = [0.0]
    for spec, value, wanted in zip(signature.outputs, outputs, expected, strict=True):
        arrays[f"={spec.name}"] = value
        if must_be_finite:
            check_finite(value, wanted, model)
        if np.isfinite(value).all() and np.isfinite(wanted).all():
            differences.append(relative_difference(value, wanted))
    return arrays, max(differences)


def _outputs(model: keras.Model, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    weights = [variable.value for variable in model_variables(model)]
    return [np.asarray(output) for output in stateless_forward(model)(weights, *inputs)]


def _about(model: keras.Model) -> dict[str, Any]:
    packages = {"convoy": "keras-convoy", "keras": "keras", "jax": "jax"}
    return {
        "model": model.name,
        "parameters": model.count_params(),
        "versions": {name: metadata.version(package) for name, package in packages.items()},
    }
