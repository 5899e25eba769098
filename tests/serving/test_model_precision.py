"""A converted model is the one that Keras makes under the policy, with a last layer in float32."""

import keras
import numpy as np
import pytest
from convoy import precision
from convoy.serving.model_precision import convert, policies_of
from keras import layers
from tests.serving.models import classifier

HALVES = ("mixed_bfloat16", "bfloat16", "mixed_float16", "float16")


def network(last="float32"):
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    x = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    return keras.Model(image, layers.Dense(5, activation="softmax", dtype=last)(x))


def rounded(model, images):
    return np.asarray(model(images), "float32")


@pytest.mark.parametrize("policy", HALVES)
def test_it_is_the_model_that_keras_makes_under_the_policy(policy, rng):
    model, images = network(), rng.normal(size=(4, 8, 8, 3)).astype("float32")
    with precision.find(policy).scope():
        expected = network()
    expected.set_weights(model.get_weights())

    found = convert(model, precision.find(policy))

    assert policies_of(found) == [policy]
    assert [weight.dtype for weight in found.weights] == [w.dtype for w in expected.weights]
    np.testing.assert_array_equal(rounded(found, images), rounded(expected, images))
    assert (rounded(found, images) != rounded(model, images)).any()
    assert policies_of(model) == ["float32"]


def test_there_and_back_is_the_model_itself_under_a_mixed_policy(rng):
    model, images = network(), rng.normal(size=(2, 8, 8, 3)).astype("float32")
    half = convert(model, precision.find("mixed_bfloat16"))
    back = convert(half, precision.find("float32"))
    np.testing.assert_array_equal(rounded(back, images), rounded(model, images))


def test_float32_layers_of_a_16_bit_model_keep_their_policy():
    with precision.find("mixed_float16").scope():
        image = keras.Input((4,))
        x = layers.Dense(3, dtype="float32", name="exact")(image)
        model = keras.Model(image, layers.Dense(2)(layers.Dense(3, name="half")(x)))
    found = convert(model, precision.find("bfloat16"))
    assert found.get_layer("exact").dtype_policy.name == "float32"
    assert found.get_layer("half").dtype_policy.name == "bfloat16"


@pytest.mark.parametrize("kind", ["nested", "sequential", "operation"])
def test_outputs_are_float32_wherever_they_come_from(kind):
    image = keras.Input((8, 8, 3), name="image")
    if kind == "nested":
        inner = network(last=None)
    elif kind == "sequential":
        inner = keras.Sequential(
            [keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(5, name="last")]
        )
    outputs = keras.ops.relu(layers.Flatten()(image)) if kind == "operation" else inner(image)
    found = convert(keras.Model(image, outputs), precision.find("bfloat16"))
    assert [output.dtype for output in found.outputs] == ["float32"]
    if kind != "operation":
        assert found.layers[-1].layers[-1].compute_dtype == "float32"
        assert found.layers[-1].layers[-2].compute_dtype == "bfloat16"


def test_layers_inside_of_a_layer_are_converted():
    x = keras.Input((4, 3))
    inner = layers.TimeDistributed(layers.Dense(2), name="each")(x)
    model = keras.Model(x, layers.Dense(2)(layers.Flatten()(inner)))
    found = convert(model, precision.find("bfloat16")).get_layer("each")
    assert found.layer.compute_dtype == found.compute_dtype == "bfloat16"


def test_what_layers_compute_from_their_weights_is_restored(rng):
    x = keras.Input((3,))
    normalised = layers.Normalization()
    normalised.adapt(rng.normal(5, 2, (100, 3)))
    model = keras.Model(x, layers.Dense(2)(normalised(x)))
    data = rng.normal(5, 2, (4, 3)).astype("float32")
    found = convert(model, precision.find("mixed_bfloat16"))
    np.testing.assert_allclose(found(data), model(data), atol=2.0**-5)


class Unconfigured(layers.Layer):
    def __init__(self):
        super().__init__()

    def call(self, x):
        return x


def test_a_layer_that_cannot_be_made_again_is_refused_in_one_line():
    x = keras.Input((3,))
    model = keras.Model(x, layers.Dense(2)(Unconfigured()(x)), name="odd")
    with pytest.raises(ValueError, match=r"'odd' cannot be converted to .* load its weights") as it:
        convert(model, precision.find("bfloat16"))
    assert "\n" not in str(it.value)


def test_batch_norm_keeps_its_statistics(rng):
    model = classifier()
    images = rng.random((4, 8, 8, 3)).astype("float32")
    found = convert(model, precision.find("mixed_bfloat16"))
    np.testing.assert_allclose(found(images), model(images), atol=2.0**-6)
