"""Signatures, examples and results that TensorFlow Serving's REST and gRPC APIs share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from convoy.serving import admission
from convoy.serving.decoding import check_thread
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


@dataclass(frozen=True)
class FeatureReader(Generic[Feature]):
    """Functions that read the features of an API's examples.

    Attributes:
        is_file: return whether a feature has an image file, not numbers.
        file_bytes: return the size of the image file in a feature without decoding it.
        file: return the image file in a feature.
        numbers: return the numbers in a feature, in the type and shape of a sample.
    """

    is_file: Callable[[Feature], bool]
    file_bytes: Callable[[Feature, TensorSpec], int]
    file: Callable[[Feature], bytes]
    numbers: Callable[[Feature, TensorSpec], np.ndarray]


class _Column(NamedTuple, Generic[Feature]):
    """The features of one input.

    Attributes:
        features: the different features; that of the context, if an example needs it, is the last.
        rows: the index of each sample's feature.
        files: the sizes of the image files among the features, by index.
    """

    spec: TensorSpec
    features: list[Feature]
    rows: list[int]
    files: dict[int, int]


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
    examples: Sequence[Mapping[str, Feature]],
    context: Mapping[str, Feature],
    signature: Signature,
    reader: FeatureReader[Feature],
    max_samples: int,
) -> Arrays:
    """Return the inputs of a classification or regression request.

    A feature of the context is read once, and its value is shared between the examples: it can be
    megabytes long, while an example without features takes two bytes.

    Args:
        examples: the features of each sample, by the name of the input; their number was checked.
        context: the features of all examples that do not have their own.
        signature: the model's inputs.
        reader: functions that read a feature.
        max_samples: maximum number of image files.

    Raises:
        ServingError: if a feature is missing or does not fit its input, or a limit is exceeded.
    """
    columns = [_column(examples, context, spec, reader) for spec in signature.inputs]
    with admission.attempt():
        admission.reserve(sum(map(_memory, columns)))
        return {column.spec.name: _batch(column, reader, max_samples) for column in columns}


def _column(
    examples: Sequence[Mapping[str, Feature]],
    context: Mapping[str, Feature],
    spec: TensorSpec,
    reader: FeatureReader[Feature],
) -> _Column[Feature]:
    """Return the features of an input, without reading their values.

    Raises:
        ServingError: if a feature is missing, or is an image file that the input does not take.
    """
    features, rows = list[Feature](), list[int]()
    for example in examples:
        if spec.name in example:
            rows.append(len(features))
            features.append(example[spec.name])
        elif spec.name in context:
            rows.append(-1)
        else:
            raise invalid(f"Missing feature: {spec.name} in example.")
    if -1 in rows:
        features.append(context[spec.name])
    indices = [index for index, feature in enumerate(features) if reader.is_file(feature)]
    if indices:
        spec.check_takes_images()
    files = {index: reader.file_bytes(features[index], spec) for index in indices}
    return _Column(spec, features, rows, files)


def _memory(column: _Column[Feature]) -> int:
    """Return the memory of a batch in bytes, without that of pixels, which `images` reserves."""
    size = sum(column.files.values())
    if len(column.files) < len(column.features):
        size += len(column.features) * column.spec.sample_bytes
    if len(column.features) < len(column.rows):
        size += len(column.rows) * column.spec.sample_bytes
    return size


def _batch(
    column: _Column[Feature], reader: FeatureReader[Feature], max_samples: int
) -> np.ndarray:
    """Return the samples of an input."""
    if 1 < len(column.features) < len(column.rows):
        # Features are copied: a small request can need a long time.
        check_thread(len(column.rows) * column.spec.values)
    values = _values(column, reader, max_samples)
    if len(values) == len(column.rows):
        return values
    if len(values) == 1:
        return np.broadcast_to(values[0], (len(column.rows), *column.spec.shape))
    return values[column.rows]


def _values(
    column: _Column[Feature], reader: FeatureReader[Feature], max_samples: int
) -> np.ndarray:
    """Return the values of each feature; image files among them are decoded together."""
    spec, files = column.spec, column.files
    pixels = None
    if files:
        data = [reader.file(column.features[index]) for index in files]
        pixels = decode_images(data, [len(data)], spec, max_samples)
        if len(files) == len(column.features):
            return pixels
    values = np.empty((len(column.features), *spec.shape), spec.numpy_dtype)
    if pixels is not None:
        values[list(files)] = pixels
    for index, feature in enumerate(column.features):
        if index not in files:
            values[index] = reader.numbers(feature, spec)
    return values


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
