"""Exports that ONNX Runtime loads; their outputs are the model's."""

import sys

import convoy
import keras
import numpy as np
import pytest
from keras import layers
from tests import parts
from tests.serving.models import classifier

pytestmark = pytest.mark.integration


def wide_variety():
    """Poolings, activations, depthwise and separable convolutions, concatenation, padding."""
    image = keras.Input((12, 12, 3), name="image")
    x = layers.ZeroPadding2D(1)(image)
    x = layers.SeparableConv2D(6, 3, activation="silu")(x)
    x = layers.DepthwiseConv2D(3, padding="same")(x)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("gelu")(x)
    average = layers.AveragePooling2D(3, strides=2, padding="same")(x)
    largest = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = layers.Concatenate()([average, largest])
    scale = layers.Dense(12, activation="hard_sigmoid")(layers.GlobalAveragePooling2D()(x))
    x = layers.Multiply()([x, layers.Reshape((1, 1, 12))(scale)])
    x = layers.LayerNormalization()(x)
    x = layers.Dropout(0.5)(layers.Flatten()(layers.GlobalMaxPooling2D(keepdims=True)(x)))
    return keras.Model(image, layers.Dense(4, activation="softmax")(x))


def run_onnx(path, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"image": images})[0]


@parts.needs("ONNX Runtime")
@pytest.mark.parametrize("make", [classifier, wide_variety])
def test_onnx_runtime_computes_the_same(tmp_path, rng, make):
    model = make()
    path = convoy.export(model, tmp_path, format="onnx", preprocessing=layers.Rescaling(1 / 255))
    for size in (1, 3):
        images = rng.integers(0, 256, (size, *model.input_shape[1:])).astype(np.uint8)
        expected = model(images / np.float32(255))
        np.testing.assert_allclose(run_onnx(path, images), expected, rtol=1e-4, atol=1e-5)


@parts.needs("ONNX Runtime")
def test_batch_norm_is_folded_in_onnx(tmp_path):
    import onnx

    path = convoy.export(classifier(), tmp_path, format="onnx")
    operations = {node.op_type for node in onnx.load(path / "model.onnx").graph.node}
    assert "Conv" in operations
    assert not {"BatchNormalization", "Sqrt", "Reciprocal"} & operations


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match="The format onnx needs the package onnx"):
        convoy.export(classifier(), tmp_path / "models", format="onnx")
    assert not (tmp_path / "models").exists()
