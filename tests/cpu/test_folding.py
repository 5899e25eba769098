import jax
import keras
import numpy as np
from convoy import cpu
from convoy.serving.forward_pass import ForwardPass
from keras import layers


def network(after=layers.ReLU, **convolution):
    image = keras.Input((6, 6, 3))
    x = layers.Conv2D(4, 3, **convolution)(image)
    x = after()(layers.BatchNormalization()(x))
    model = keras.Model(image, x)
    model.layers[2].set_weights(
        [np.array(values, np.float32) for values in ([2, 1, 0.5, 3],) * 2 + ([1, 2, 3, 4],) * 2]
    )
    return model


def compare(model, rng):
    x = rng.random((2, 6, 6, 3), np.float32)
    folded = ForwardPass(model, 2, cpu.fold)
    (found,) = jax.jit(folded.run)(folded.constants, x)
    np.testing.assert_allclose(found, model(x), rtol=1e-5, atol=1e-5)
    return [equation.primitive.name for equation in folded.equations]


def test_batch_norm_goes_into_the_convolution(rng):
    operations = compare(network(use_bias=False), rng)
    assert operations.count("conv_general_dilated") == 1
    assert not {"mul", "div", "sub", "rsqrt"} & set(operations)


def test_a_bias_is_folded_too(rng):
    model = network(bias_initializer="ones")
    assert compare(model, rng).count("add") == 1


def test_padding_before_a_convolution_is_kept(rng):
    image = keras.Input((6, 6, 3))
    x = layers.Conv2D(4, 3, strides=2)(layers.ZeroPadding2D(1)(image))
    model = keras.Model(image, layers.BatchNormalization()(x))
    assert "pad" not in compare(model, rng)


def test_another_activation_stays(rng):
    assert "tanh" in compare(network(after=lambda: layers.Activation("tanh")), rng)


def test_what_is_not_a_convolution_stays(rng):
    image = keras.Input((6, 6, 3))
    model = keras.Model(image, layers.BatchNormalization()(layers.MaxPooling2D()(image)))
    compare(model, rng)


def test_16_bits_are_left_as_they_are(rng):
    image = keras.Input((6, 6, 3))
    x = layers.Conv2D(4, 3, dtype="float16")(image)
    model = keras.Model(image, layers.BatchNormalization(dtype="float16")(x))
    x = rng.random((2, 6, 6, 3), np.float32)
    folded = ForwardPass(model, 2, cpu.fold)
    (found,) = jax.jit(folded.run)(folded.constants, x)
    np.testing.assert_array_equal(found, jax.jit(lambda x: model(x))(x))
