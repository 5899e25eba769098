import convoy
import keras
import numpy as np
from convoy.layers import UpdateBatchNormalization


def moving(layer):
    return layer.moving_mean.numpy(), layer.moving_variance.numpy()


def test_with_one_micro_batch_it_is_keras_batch_norm(rng):
    x = rng.normal(size=(6, 3)).astype("float32")
    ours, theirs = (
        UpdateBatchNormalization(momentum=0.9),
        keras.layers.BatchNormalization(momentum=0.9),
    )
    np.testing.assert_array_equal(ours(x, training=True), theirs(x, training=True))
    for mine, its in zip(moving(ours), moving(theirs), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_statistics_advance_once_per_weight_update(rng):
    parts = rng.normal(2, 3, (2, 4, 6, 3)).astype("float32")  # updates, micro-batches, samples
    layer = UpdateBatchNormalization(micro_batches=4, momentum=0.8)
    mean, variance = np.zeros(3), np.ones(3)
    for update in parts:
        for part in update:
            layer(part, training=True)
        mean = 0.8 * mean + 0.2 * update.mean(1).mean(0)
        variance = 0.8 * variance + 0.2 * update.var(1).mean(0)
        np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-5)
        np.testing.assert_allclose(layer.moving_variance.numpy(), variance, rtol=1e-5)
        assert int(layer.position.numpy()) == 0
    layer(parts[0, 0], training=False)
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-5)


def test_in_the_device_loop_too(rng):
    x = rng.normal(size=(16, 5)).astype("float32")
    with convoy.Strategy(devices=2, gradient_accumulation=2).scope():
        norm = UpdateBatchNormalization(micro_batches=2, momentum=0.5)
        model = keras.Sequential([keras.Input((5,)), norm, keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=4)
    model.fit(x, np.zeros((16, 1)), batch_size=4, shuffle=False, verbose=0)
    # One update of two micro-batches of 4 on each of two replicas.
    np.testing.assert_allclose(norm.moving_mean.numpy(), 0.5 * x.mean(0), rtol=1e-5, atol=1e-6)
    variance = x.reshape(4, 4, 5).var(1).mean(0)
    np.testing.assert_allclose(norm.moving_variance.numpy(), 0.5 + 0.5 * variance, rtol=1e-5)
