"""Signatures, examples and results that TensorFlow Serving's REST and gRPC APIs share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from convoy.serving.errors import invalid, shorten
from convoy.serving.images import decode_images
from convoy.serving.signature import TYPES, Arrays, Signature, TensorSpec
from convoy.serving.tensorflow_serving_pb2 import SignatureDefMap

SERVICE_PACKAGE = "tensorflow.serving"
DEFAULT_SIGNATURE = "serving_default"
PREDICT, CLASSIFY, REGRESS = (
    f"tensorflow/serving/{method}" for method in ("predict", "classify", "regress")
)
# Every model has one signature; clients request it by any of these names.
KNOWN_SIGNATURES = ("", DEFAULT_SIGNATURE, PREDICT, CLASSIFY, REGRESS)
# Metadata key of a NOT_FOUND error: the names of all models, as a JSON list.
MODELS_KEY = "convoy-models"

Feature = TypeVar("Feature")


def check_signature_name(name: str) -> None:
    """Check that a request asks for the one signature that every model has.

    Raises:
        ServingError: if the name is not one of `KNOWN_SIGNATURES`.
    """
    if name not in KNOWN_SIGNATURES:
        raise invalid(f'Serving signature name: "{shorten(name)}" not found in signature def')


def signature_definitions(signature: Signature) -> SignatureDefMap:
    """Return the message that describes the inputs and outputs of a model."""
    definitions = SignatureDefMap()
    definition = definitions.signature_def[DEFAULT_SIGNATURE]
    definition.method_name = PREDICT
    for specs, infos in (
        (signature.inputs, definition.inputs),
        (signature.outputs, definition.outputs),
    ):
        for spec in specs:
            info = infos[spec.name]
            info.name, info.dtype = f"{spec.name}:0", TYPES[spec.dtype].tensorflow
            for size in (-1, *spec.shape):
                info.tensor_shape.dim.add(size=size)
    return definitions


def example_inputs(
    examples: Iterable[Mapping[str, Feature]],
    signature: Signature,
    read_feature: Callable[[Feature, TensorSpec], np.ndarray | bytes],
    max_samples: int,
) -> Arrays:
    """Return the inputs of a classification or regression request.

    Args:
        examples: the features of each sample, by the name of the input.
        signature: the model's inputs.
        read_feature: conversion of one feature to an array with the shape of a sample, or to the
            bytes of an image file.
        max_samples: maximum number of examples.

    Raises:
        ServingError: if a feature is missing or does not fit its input.
    """
    samples: dict[str, list[np.ndarray | bytes]] = {spec.name: [] for spec in signature.inputs}
    for features in examples:
        for spec in signature.inputs:
            if spec.name not in features:
                raise invalid(f"Missing feature: {spec.name} in example.")
            samples[spec.name].append(read_feature(features[spec.name], spec))
    return {spec.name: _batch(samples[spec.name], spec, max_samples) for spec in signature.inputs}


def _batch(samples: Sequence[np.ndarray | bytes], spec: TensorSpec, max_samples: int) -> np.ndarray:
    """Return samples as a batch; image files among them are decoded together."""
    files = [index for index, sample in enumerate(samples) if isinstance(sample, bytes)]
    batch = list(samples)
    if files:
        data = [sample for sample in samples if isinstance(sample, bytes)]
        pixels = decode_images(data, [len(files)], spec, max_samples)
        for index, image in zip(files, pixels, strict=True):
            batch[index] = image
    return np.stack(batch)


def class_scores(outputs: Arrays, class_names: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the label of each class, empty without class names, and the scores of each sample.

    Raises:
        ServingError: if the model does not have one output with a score per class.
    """
    values = list(outputs.values())
    if len(values) != 1 or values[0].ndim != 2 or values[0].dtype.kind in "iub":
        raise invalid("Expected a classification signature: one output with a score per class.")
    return list(class_names) or [""] * values[0].shape[1], values[0]


def regression_values(outputs: Arrays) -> np.ndarray:
    """Return one value per sample.

    Raises:
        ServingError: if the model does not have one output with one value per sample.
    """
    values = list(outputs.values())
    if len(values) != 1 or values[0].size != len(values[0]):
        raise invalid("Expected a regression signature: one output with one value per sample.")
    return values[0].reshape(-1)
