import convoy
import keras
import numpy as np
import pytest
from keras import layers
from tests.equivalence.side_by_side import assert_same, make_convoy, make_stock, state


class Centred(layers.Layer):
    """Takes away the mean over the whole batch, wherever its samples are."""

    def call(self, inputs):
        return inputs - convoy.cross_replica.mean(keras.ops.mean(inputs, axis=0, keepdims=True))


def contrast(y, y_pred):
    """A loss that compares every sample with those of all replicas."""
    everyone = convoy.cross_replica.gather(y_pred)
    return keras.ops.mean((y_pred[:, None] - everyone[None]) ** 2, axis=(1, 2)) + (y - y_pred)[:, 0]


def network(steps=1, loss=contrast):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh"), Centred()])
    model.compile(keras.optimizers.SGD(0.1), loss, steps_per_execution=steps)
    return model


@pytest.fixture
def data(rng):
    return rng.normal(size=(48, 6)).astype("float32"), rng.normal(size=(48, 4)).astype("float32")


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_mean_and_gather_make_a_share_know_the_whole_batch(data, replicas):
    stock = make_stock(network)
    expected = stock.fit(*data, batch_size=16, epochs=2, verbose=0).history, state(stock)
    model = make_convoy(network, 3, devices=replicas)
    history = model.fit(*data, batch_size=16 // replicas, epochs=2, verbose=0).history
    assert_same((history, state(model)), expected)


@pytest.mark.parametrize("replicas", [1, 4])
def test_sum(replicas):
    class Total(layers.Layer):
        def call(self, inputs):
            return convoy.cross_replica.sum({"total": inputs})["total"] + 0 * inputs

    model = make_convoy(lambda _: keras.Sequential([keras.Input((1,)), Total()]), devices=replicas)
    x = np.arange(4, dtype="float32")[:, None]
    outputs = model.predict(x, batch_size=4 // replicas, verbose=0)
    np.testing.assert_array_equal(outputs, x if replicas == 1 else np.full((4, 1), 6.0))


def test_gather_keeps_the_order_of_replicas():
    class Everyone(layers.Layer):
        def call(self, inputs):
            return keras.ops.reshape(convoy.cross_replica.gather(inputs), (1, -1))

    model = make_convoy(lambda _: keras.Sequential([keras.Input((1,)), Everyone()]), devices=4)
    outputs = model.predict(np.arange(4, dtype="float32")[:, None], batch_size=1, verbose=0)
    np.testing.assert_array_equal(outputs, [[0, 1, 2, 3]] * 4)


def test_outside_of_a_run_there_is_one_replica():
    assert convoy.cross_replica.count() == 1
    np.testing.assert_array_equal(convoy.cross_replica.sum(np.ones(3)), np.ones(3))
