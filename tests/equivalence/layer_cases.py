"""A small constructor and an input for every class of `keras.layers` that can stand in a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers

from .test_augmentation import LAYERS as AUGMENTATION
from .test_augmentation import ON_HOST

VECTOR, SEQUENCE, IMAGE, VOLUME = (6,), (5, 4), (6, 6, 3), (4, 4, 4, 2)
AUDIO = (64,)

# Classes that no model on JAX can hold, and why.
CANNOT_STAND_IN_A_MODEL = {
    "InputSpec": "describes inputs; it is not a layer",
    "Layer": "has no computation: it is the class that layers derive from",
    "Wrapper": "has no computation: it is the class that wrappers derive from",
    "FlaxLayer": "wraps a module of Flax, which is not installed; it is a JaxLayer",
    "HashedCrossing": "computes with TensorFlow's strings, outside of a model on JAX",
    "Hashing": "computes with TensorFlow's strings, outside of a model on JAX",
    "IntegerLookup": "looks up in a table of TensorFlow, outside of a model on JAX",
    "StringLookup": "looks up in a table of TensorFlow, outside of a model on JAX",
    "TextVectorization": "looks up in a table of TensorFlow, outside of a model on JAX",
    "TFSMLayer": "runs a program of TensorFlow, on Keras's TensorFlow backend only",
    "TorchModuleWrapper": "runs a module of torch, on Keras's torch backend only",
}


@dataclass(frozen=True)
class Case:
    """A layer in a model.

    Attributes:
        make: creates the layer.
        shape: shape of a sample.
        call: calls the layer; by default on its input alone.
        integers: whether the input is class numbers below 6 instead of floating-point numbers.
    """

    make: Callable[[], layers.Layer]
    shape: tuple[int, ...] = VECTOR
    call: Callable[[layers.Layer, Any], Any] = lambda layer, x: layer(x)
    integers: bool = False


def _twice(layer: layers.Layer, x: Any) -> Any:
    return layer(x, x)


def _pair(layer: layers.Layer, x: Any) -> Any:
    return layer([x, layers.Dense(x.shape[-1], "tanh")(x)])


def _in_rnn(cell: layers.Layer, x: Any) -> Any:
    return layers.RNN(cell)(x)


def _masked(layer: layers.Layer, x: Any) -> Any:
    return layers.SimpleRNN(3)(layer(x))


def _there_and_back(layer: layers.Layer, x: Any) -> Any:
    return layer(layer(x), reverse=True)


def _scale(params: dict[str, Any], inputs: Any) -> Any:
    return inputs * params["scale"][None]


def _merging(name: str, **settings: Any) -> Case:
    return Case(lambda: getattr(layers, name)(**settings), VECTOR, _pair)


def _by_rank(prefix: str, *args: Any, ranks: tuple[int, ...] = (1, 2, 3), **settings: Any) -> dict:
    """Return the cases of a layer with one class for each number of axes."""
    shapes = {1: SEQUENCE, 2: IMAGE, 3: VOLUME}

    def case(rank: int) -> Case:
        kind = getattr(layers, f"{prefix}{rank}D")
        return Case(lambda: kind(*args, **settings), shapes[rank])

    return {f"{prefix}{rank}D": case(rank) for rank in ranks}


CASES = {
    # Activations
    "Activation": Case(lambda: layers.Activation("gelu")),
    "ELU": Case(lambda: layers.ELU()),
    "LeakyReLU": Case(lambda: layers.LeakyReLU()),
    "PReLU": Case(lambda: layers.PReLU()),
    "ReLU": Case(lambda: layers.ReLU(max_value=2.0, negative_slope=0.1)),
    "Softmax": Case(lambda: layers.Softmax()),
    # Attention
    "AdditiveAttention": Case(lambda: layers.AdditiveAttention(), SEQUENCE, _pair),
    "Attention": Case(lambda: layers.Attention(use_scale=True), SEQUENCE, _pair),
    "GroupQueryAttention": Case(lambda: layers.GroupQueryAttention(2, 4, 2), SEQUENCE, _twice),
    "MultiHeadAttention": Case(lambda: layers.MultiHeadAttention(2, 2), SEQUENCE, _twice),
    # Convolutions
    **_by_rank("Conv", 3, 3, padding="same"),
    "Conv1DTranspose": Case(lambda: layers.Conv1DTranspose(3, 2, 2), SEQUENCE),
    "Conv2DTranspose": Case(lambda: layers.Conv2DTranspose(3, 2, 2), IMAGE),
    "Conv3DTranspose": Case(lambda: layers.Conv3DTranspose(2, 2, 2), VOLUME),
    **_by_rank("DepthwiseConv", 3, ranks=(1, 2), depth_multiplier=2),
    **_by_rank("SeparableConv", 4, 3, ranks=(1, 2)),
    # Core
    "Dense": Case(lambda: layers.Dense(4, "tanh")),
    "EinsumDense": Case(lambda: layers.EinsumDense("abc,cd->abd", (5, 3), bias_axes="d"), SEQUENCE),
    "Embedding": Case(lambda: layers.Embedding(6, 3, mask_zero=True), call=_masked, integers=True),
    "Identity": Case(lambda: layers.Identity()),
    "InputLayer": Case(
        lambda: layers.InputLayer(VECTOR),
        call=lambda layer, x: keras.Sequential([layer, layers.Dense(3)])(x),
    ),
    # With a function that makes its weights, Keras would ask for TensorFlow.
    "JaxLayer": Case(lambda: layers.JaxLayer(_scale, params={"scale": np.float32([1, 2] * 3)})),
    "Lambda": Case(lambda: layers.Lambda(keras.ops.sin)),
    "Masking": Case(lambda: layers.Masking(0.0), SEQUENCE, _masked),
    "ReversibleEmbedding": Case(
        lambda: layers.ReversibleEmbedding(6, 3), call=_there_and_back, integers=True
    ),
    # Merging
    "Add": _merging("Add"),
    "Average": _merging("Average"),
    "Concatenate": _merging("Concatenate"),
    "Dot": _merging("Dot", axes=1),
    "Maximum": _merging("Maximum"),
    "Minimum": _merging("Minimum"),
    "Multiply": _merging("Multiply"),
    "Subtract": _merging("Subtract"),
    # Normalisation
    "BatchNormalization": Case(lambda: layers.BatchNormalization(momentum=0.8), IMAGE),
    "GroupNormalization": Case(lambda: layers.GroupNormalization(3), IMAGE),
    "LayerNormalization": Case(lambda: layers.LayerNormalization()),
    "RMSNormalization": Case(lambda: layers.RMSNormalization()),
    "SpectralNormalization": Case(lambda: layers.SpectralNormalization(layers.Dense(3))),
    "UnitNormalization": Case(lambda: layers.UnitNormalization()),
    # Pooling
    **_by_rank("AdaptiveAveragePooling", 2),
    **_by_rank("AdaptiveMaxPooling", 2),
    **_by_rank("AveragePooling", 2),
    **_by_rank("GlobalAveragePooling"),
    **_by_rank("GlobalMaxPooling"),
    **_by_rank("MaxPooling", 2),
    # Preprocessing that is no augmentation
    "CategoryEncoding": Case(lambda: layers.CategoryEncoding(6), integers=True),
    "Discretization": Case(lambda: layers.Discretization([-1.0, 0.0, 1.0], output_mode="one_hot")),
    # It changes bounding boxes, which a model does not hold, and passes images on.
    "MaxNumBoundingBoxes": Case(lambda: layers.MaxNumBoundingBoxes(4), IMAGE),
    "MelSpectrogram": Case(
        lambda: layers.MelSpectrogram(
            num_mel_bins=4, sequence_length=16, fft_length=16, sequence_stride=8
        ),
        AUDIO,
    ),
    "Pipeline": Case(
        lambda: layers.Pipeline([layers.Rescaling(2.0), layers.CenterCrop(4, 4)]), IMAGE
    ),
    "STFTSpectrogram": Case(
        lambda: layers.STFTSpectrogram(frame_length=16, frame_step=8, fft_length=16), (64, 1)
    ),
    # Recurrent layers
    "Bidirectional": Case(lambda: layers.Bidirectional(layers.GRU(2)), SEQUENCE),
    "ConvLSTM1D": Case(lambda: layers.ConvLSTM1D(2, 2), (3, 4, 2)),
    "ConvLSTM2D": Case(lambda: layers.ConvLSTM2D(2, 2), (3, 4, 4, 2)),
    "ConvLSTM3D": Case(lambda: layers.ConvLSTM3D(2, 2), (2, 3, 3, 3, 2)),
    "GRU": Case(lambda: layers.GRU(3), SEQUENCE),
    "GRUCell": Case(lambda: layers.GRUCell(3), SEQUENCE, _in_rnn),
    "LSTM": Case(lambda: layers.LSTM(3), SEQUENCE),
    "LSTMCell": Case(lambda: layers.LSTMCell(3, dropout=0.2, seed=1), SEQUENCE, _in_rnn),
    "RNN": Case(lambda: layers.RNN(layers.SimpleRNNCell(3), return_sequences=True), SEQUENCE),
    "SimpleRNN": Case(lambda: layers.SimpleRNN(3), SEQUENCE),
    "SimpleRNNCell": Case(lambda: layers.SimpleRNNCell(3), SEQUENCE, _in_rnn),
    "StackedRNNCells": Case(
        lambda: layers.StackedRNNCells([layers.GRUCell(3), layers.SimpleRNNCell(2)]),
        SEQUENCE,
        _in_rnn,
    ),
    "TimeDistributed": Case(lambda: layers.TimeDistributed(layers.Dense(3)), SEQUENCE),
    # Regularisation
    "ActivityRegularization": Case(lambda: layers.ActivityRegularization(0.01, 0.01)),
    "AlphaDropout": Case(lambda: layers.AlphaDropout(0.3, seed=1)),
    "Dropout": Case(lambda: layers.Dropout(0.3, seed=1)),
    "GaussianDropout": Case(lambda: layers.GaussianDropout(0.3, seed=1)),
    "GaussianNoise": Case(lambda: layers.GaussianNoise(0.3, seed=1)),
    **_by_rank("SpatialDropout", 0.3, seed=1),
    # Reshaping
    **_by_rank("Cropping", 1),
    "Flatten": Case(lambda: layers.Flatten(), IMAGE),
    "Permute": Case(lambda: layers.Permute((2, 1)), SEQUENCE),
    "RepeatVector": Case(lambda: layers.RepeatVector(3)),
    "Reshape": Case(lambda: layers.Reshape((3, -1))),
    **_by_rank("UpSampling", 2),
    **_by_rank("ZeroPadding", 1),
}


def public_classes() -> dict[str, list[str]]:
    """Return the classes of `keras.layers` by name, with the further names that each has."""
    names: dict[int, list[str]] = {}
    for name, value in vars(layers).items():
        if inspect.isclass(value):
            names.setdefault(id(value), []).append(name)
    return {_chosen(found): found for found in names.values()}


def _chosen(names: list[str]) -> str:
    """Return the name of a class that the tables use, or else its first name."""
    known = [name for name in names if name in COVERED or name in CANNOT_STAND_IN_A_MODEL]
    return known[0] if known else names[0]


COVERED = CASES | AUGMENTATION | ON_HOST


def groups() -> dict[str, list[str]]:
    """Return the names of the cases whose layers take the same input, by that input."""
    found: dict[str, list[str]] = {}
    for name, case in CASES.items():
        kind = "integers" if case.integers else "numbers"
        found.setdefault(f"{kind} {'x'.join(map(str, case.shape))}", []).append(name)
    return found


def network(names: list[str]) -> Callable[[Any], keras.Model]:
    """Return a function that makes a model with layers side by side, each between two others."""

    def make(steps: Any) -> keras.Model:
        first = CASES[names[0]]
        inputs = keras.Input(first.shape, dtype="int32" if first.integers else "float32")
        outputs = [_branch(CASES[name], inputs) for name in names]
        model = keras.Model(inputs, layers.Add()(outputs) if len(names) > 1 else outputs[0])
        model.compile(
            keras.optimizers.SGD(0.02, momentum=0.9),
            "mse",
            metrics=["mae"],
            steps_per_execution=steps,
        )
        return model

    return make


def _branch(case: Case, x: Any) -> Any:
    if not case.integers:
        # A layer with weights in front shows the gradient that the layer passes on.
        x = layers.Dense(case.shape[-1])(x)
    x = case.call(case.make(), x)
    return layers.Dense(2)(layers.Flatten()(x))


def data(name: str, samples: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of two steps for the layer of a case."""
    case = CASES[name]
    rng = np.random.default_rng(3)
    shape = (samples, *case.shape)
    if case.integers:
        x = rng.integers(0, 6, shape).astype("int32")
    else:
        x = rng.normal(size=shape).astype("float32")
    return x, rng.normal(size=(samples, 2)).astype("float32")
