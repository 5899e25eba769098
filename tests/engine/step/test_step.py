"""One micro-batch as a pure function, beside Keras's own computation."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from convoy.engine.state import State, Variables
from convoy.engine.step.step import (
    denominator_step,
    evaluation_step,
    gradient_step,
    prediction_step,
    results,
)

X = np.array([[1, 2], [3, 4]], np.float32)
Y = np.array([[1], [0]], np.float32)
POSITION = ((X, Y), jnp.int32(0))


def fetch(source, _):
    return source


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    model._symbolic_build(data_batch=(X, Y, None))
    return model


def forward(state):
    kernel, bias = map(np.asarray, state.trainable)
    return X @ kernel + bias


def test_gradients_are_those_of_the_loss(model):
    state = Variables(model, "train").read()
    new, gradients, logs = gradient_step(model, fetch)(state, POSITION)

    def loss(weights):
        return jnp.mean((X @ weights[0] + weights[1][None] - Y) ** 2)

    for gradient, expected in zip(gradients, jax.grad(loss)(state.trainable), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    assert new.trainable == state.trainable
    assert logs == {}


def test_evaluation_updates_the_metrics_alone(model):
    state = Variables(model, "evaluate").read()
    new, _ = evaluation_step(model, fetch)(state, POSITION)
    error = np.abs(forward(state) - Y)
    found = results(model, new, {})
    np.testing.assert_allclose(found["loss"], np.mean(error**2), rtol=1e-6)
    np.testing.assert_allclose(found["mae"], np.mean(error), rtol=1e-6)
    assert new.trainable == state.trainable


def test_prediction_is_the_forward_pass(model):
    state = Variables(model, "predict").read()
    _, outputs = prediction_step(model, fetch)(state, POSITION)
    np.testing.assert_allclose(outputs, forward(state), rtol=1e-6)


def test_a_mean_over_samples_has_no_denominators(model):
    state = Variables(model, "train").read()
    assert denominator_step(model, fetch)(state, POSITION) == []


def test_the_models_own_logs_replace_the_metrics(model):
    state = State(*[[]] * 4)
    assert results(model, state, {"own": 1}) == {"own": 1}
