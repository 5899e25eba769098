"""Exports that TensorFlow loads; their outputs are the model's."""

import convoy
import numpy as np
import pytest
from convoy import precision
from convoy.serving.model_precision import convert
from keras import layers
from tests import parts
from tests.equivalence.side_by_side import HALF_TOLERANCE
from tests.serving.models import classifier


@pytest.mark.interop
@parts.needs("TensorFlow")
def test_tensorflow_computes_the_same(tmp_path, rng):
    import tensorflow as tf

    model = classifier()
    path = convoy.export(
        model, tmp_path, format="saved_model", preprocessing=layers.Rescaling(1 / 255)
    )
    loaded = tf.saved_model.load(str(path)).signatures["serving_default"]
    for size in (1, 3):
        images = rng.integers(0, 256, (size, 8, 8, 3)).astype(np.uint8)
        found = loaded(image=tf.constant(images))["output_0"]
        expected = model(images / np.float32(255))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.interop
@parts.needs("TensorFlow")
@pytest.mark.parametrize("policy", ["bfloat16", "mixed_float16"])
def test_tensorflow_computes_in_16_bits_with_float32_inputs_and_outputs(tmp_path, rng, policy):
    import tensorflow as tf

    model, images = classifier(), rng.random((3, 8, 8, 3)).astype(np.float32)
    path = convoy.export(model, tmp_path, format="saved_model", precision=policy)
    loaded = tf.saved_model.load(str(path)).signatures["serving_default"]
    found = loaded(image=tf.constant(images))["output_0"]
    assert found.dtype == tf.float32
    expected = convert(model, precision.find(policy))(images)
    tolerance = HALF_TOLERANCE[policy]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
