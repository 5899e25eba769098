import keras
import numpy as np
import pytest
from convoy.layers import Offset
from convoy.optimizers import Regularized
from keras import optimizers


def trained_offset(data, speed):
    """Return an offset after some steps, so small that gradients hardly change."""
    layer = Offset(speed)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(optimizers.SGD(1e-5, 0.9, nesterov=True), "mse")
    model.fit(*data, batch_size=4, verbose=0, shuffle=False)
    return np.sqrt(speed) * layer.beta.numpy()


def test_sgd_moves_it_so_many_times_as_fast(rng):
    data = rng.normal(size=(2, 16, 3))
    np.testing.assert_allclose(
        trained_offset(data, 64.0), 64 * trained_offset(data, 1.0), rtol=2e-2
    )


def test_l2_draws_it_to_zero_as_fast_as_any_weight():
    layer = Offset(64)
    layer.build((None, 2))
    layer.beta.assign([1.0, -2.0])
    Regularized(optimizers.SGD(0.5), l2=0.1).apply([np.zeros(2, "float32")], [layer.beta])
    added = np.asarray(layer(np.zeros((1, 2), "float32")))
    np.testing.assert_allclose(added, [[8 * 0.95, -16 * 0.95]], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_begins_as_nothing_and_keeps_the_form(rng, dtype):
    x = rng.normal(size=(2, 4, 4, 3)).astype(dtype)
    out = Offset(dtype=dtype)(x)
    assert out.dtype == dtype
    np.testing.assert_array_equal(np.asarray(out), x)


def test_survives_saving():
    config = keras.saving.serialize_keras_object(Offset(16))
    assert keras.saving.deserialize_keras_object(config).speed == 16
