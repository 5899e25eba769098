import keras
import numpy as np
import pytest
from convoy.estimator import ArrayInput, EstimatorSpec


@pytest.fixture
def data(rng):
    return rng.normal(size=(16, 4)).astype("float32"), rng.normal(size=(16, 1)).astype("float32")


@pytest.fixture
def batches(data):
    """Return an input function: the data again and again, in batches of two."""
    return lambda: ArrayInput(*data, batch_size=2, passes=None)


def layers(features):
    x = keras.layers.Dense(3, activation="tanh", kernel_initializer="ones")(features)
    return keras.layers.Dense(1, kernel_initializer="ones")(x)


def regression(features, labels, mode):
    return EstimatorSpec(
        mode,
        layers(features),
        "mse",
        keras.optimizers.SGD(0.1, momentum=0.9),
        metrics={} if mode == "train" else {"error": keras.metrics.MeanAbsoluteError()},
    )


class Stock:
    """The same network, trained by stock Keras."""

    def __init__(self, data):
        inputs = keras.Input((4,))
        self.model = keras.Model(inputs, layers(inputs))
        self.model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
        self.data = data

    def train(self, batch, steps):
        x, y = (np.concatenate([part] * (1 + batch * steps // 16)) for part in self.data)
        x, y = x[: batch * steps], y[: batch * steps]
        self.model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        return self

    def check(self, estimator):
        names = [n for n in estimator.get_variable_names() if n.startswith("trainable")]
        for name, stock in zip(names, self.model.get_weights(), strict=True):
            own = estimator.get_variable_value(name)
            np.testing.assert_allclose(own, stock, rtol=1e-5, atol=1e-6)


@pytest.fixture
def stock(data):
    return Stock(data)
