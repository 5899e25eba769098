"""LARS against its formula in NumPy."""

import keras
import numpy as np
import pytest
from convoy.optimizers import LARS


def variable(value, name="kernel", dtype="float32"):
    return keras.Variable(np.asarray(value), dtype=dtype, name=name)


def reference(weight, gradients, rates, momentum=0.9, decay=0.0, eeta=0.001, epsilon=1e-7):
    weight, steps = np.asarray(weight, "float64"), 0.0
    for gradient, rate in zip(gradients, rates, strict=True):
        weight_norm, gradient_norm = np.linalg.norm(weight), np.linalg.norm(gradient)
        trust = 1.0
        if weight_norm > 0 and gradient_norm > 0:
            trust = eeta * weight_norm / (gradient_norm + decay * weight_norm + epsilon)
        steps = momentum * steps + rate * trust * (gradient + decay * weight)
        weight = weight - steps
    return weight


def test_is_its_formula_with_a_schedule(rng):
    start, gradients = rng.normal(size=(3, 4)), rng.normal(size=(5, 3, 4))
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [1.0, 0.5, 0.1])
    optimizer = LARS(schedule, momentum=0.8, weight_decay=0.01, eeta=0.02, epsilon=1e-3)
    weight = variable(start)
    for gradient in gradients:
        optimizer.apply([gradient], [weight])
    rates = [1.0, 1.0, 0.5, 0.5, 0.1]
    expected = reference(start, gradients, rates, 0.8, 0.01, 0.02, 1e-3)
    np.testing.assert_allclose(np.asarray(weight), expected, rtol=1e-5)


def test_an_epsilon_of_zero_is_a_small_one(rng):
    start, gradient = np.full(2, 1e-8), np.full(2, 1e-8)
    weight = variable(start)
    LARS(1.0, eeta=0.5, epsilon=0.0).apply([gradient], [weight])
    expected = reference(start, [gradient], [1.0], eeta=0.5, epsilon=1e-7)
    np.testing.assert_allclose(np.asarray(weight), expected, rtol=1e-5)


@pytest.mark.parametrize(("start", "gradient"), [(0.0, 0.5), (2.0, 0.0)])
def test_trust_is_1_where_a_norm_is_zero(start, gradient):
    weight = variable([start])
    LARS(1.0, weight_decay=0.1).apply([np.array([gradient])], [weight])
    np.testing.assert_allclose(np.asarray(weight), [start - gradient - 0.1 * start], rtol=1e-6)


@pytest.mark.parametrize("name", ["beta", "gamma", "bias"])
def test_biases_and_normalisation_have_neither_trust_nor_decay(name):
    weight = variable([2.0], name)
    LARS(0.5, weight_decay=0.1).apply([np.array([1.0])], [weight])
    np.testing.assert_array_equal(np.asarray(weight), [1.5])


def test_words_to_exclude_can_be_chosen():
    weights = [variable([2.0], "bias"), variable([2.0], "scale")]
    LARS(0.5, exclude=["scale"]).apply([np.array([1.0])] * 2, weights)
    assert [float(w.numpy()[0]) for w in weights] == [pytest.approx(1.999), 1.5]


def test_norms_do_not_overflow_in_float16():
    start, gradient = np.full(100, 100.0), np.full(100, 100.0)
    weight = variable(start, dtype="float16")
    LARS(1.0, eeta=0.1).apply([gradient.astype("float16")], [weight])
    np.testing.assert_allclose(np.asarray(weight), 90.0, rtol=1e-3)


@pytest.mark.parametrize("gradients", [[0.5, 10.0], [0.5, 0.25]])
def test_clips_as_keras_does(gradients):
    weight = variable([1.0], "bias")
    optimizer = LARS(1.0, momentum=0.0, clipvalue=0.4)
    for gradient in gradients:
        optimizer.apply([np.array([gradient])], [weight])
    expected = 1.0 - sum(min(gradient, 0.4) for gradient in gradients)
    np.testing.assert_allclose(np.asarray(weight), [expected], rtol=1e-6)


def test_can_be_saved_and_loaded(tmp_path, rng):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    rate = keras.optimizers.schedules.CosineDecay(0.5, 100)
    model.compile(LARS(rate, 0.8, weight_decay=0.01, eeta=0.1, epsilon=0.1, clipnorm=1.0), "mse")
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 2))
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for one in (model, loaded):
        # In the same order: sums would be rounded by it.
        one.fit(x, y, shuffle=False, verbose=0)
    np.testing.assert_equal(loaded.get_weights(), model.get_weights())


@pytest.mark.parametrize(
    "argument", [{"momentum": 1.5}, {"weight_decay": -1}, {"eeta": -1}, {"epsilon": -1}]
)
def test_numbers_without_a_meaning_are_refused(argument):
    (name,) = argument
    with pytest.raises(ValueError, match=rf"LARS\({name}="):
        LARS(**argument)
