"""Lookahead, beside a loop by hand."""

import convoy
import keras
import numpy as np
import pytest
from convoy.optimizers import Lookahead, Regularized
from keras import optimizers

pytestmark = pytest.mark.integration


def by_hand(start, gradients, *, updates, every, rate=0.1, momentum=0.95):
    """Return the weights after each update."""
    weight, average, found = start.copy(), None, []
    for done, gradient in enumerate(gradients, start=1):
        weight = weight - rate * gradient
        if done % every == 0:
            share = 0.0 if average is None else momentum**every * min(done / updates, 1) ** 3
            average = weight if average is None else share * average + (1 - share) * weight
            weight = average
        elif done == updates and average is not None:
            weight = average
        found.append(weight)
    return found


@pytest.mark.parametrize(
    ("updates", "every"), [(12, 3), (10, 3), (7, 5), (4, 5), (9, 1)], ids=lambda value: str(value)
)
def test_is_a_loop_by_hand(rng, updates, every):
    start, gradients = rng.normal(size=4), rng.normal(size=(updates + every, 4))
    optimizer = Lookahead(optimizers.SGD(0.1), updates, every)
    weight = keras.Variable(start.astype("float32"))
    expected = by_hand(start, gradients, updates=updates, every=every)
    for gradient, wanted in zip(gradients, expected, strict=True):
        optimizer.apply([gradient.astype("float32")], [weight])
        np.testing.assert_allclose(np.asarray(weight), wanted, rtol=1e-4, atol=1e-5)


def network(optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(optimizer, "mse", steps_per_execution=4)
    return model


def make_optimizer():
    return Lookahead(Regularized(optimizers.SGD(0.05, 0.9, nesterov=True), l2=0.01), 12, 3)


@pytest.fixture
def data(rng):
    return rng.normal(size=(48, 3)), rng.normal(size=(48, 2))


@pytest.fixture
def expected(data):
    model = network(make_optimizer())
    model.fit(*data, batch_size=4, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"devices": 2},
        {"devices": 2, "shard_optimizer_state": True},
        {"gradient_accumulation": 2},
    ],
    ids=str,
)
def test_in_the_device_loop_too(data, expected, settings):
    with convoy.Strategy(**settings).scope():
        model = network(make_optimizer())
    size = 4 // settings.get("devices", 1) // settings.get("gradient_accumulation", 1)
    model.fit(*data, batch_size=size, shuffle=False, verbose=0)
    for ours, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-6)


def test_in_stages_too(data, expected):
    with convoy.Strategy(devices=2, gradient_accumulation=2).scope():
        model = network(make_optimizer())
    convoy.split(model, [model.layers[1].name])
    model.fit(*data, batch_size=2, shuffle=False, verbose=0)
    for ours, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-6)


def test_can_be_saved_and_loaded(tmp_path, data):
    model = network(make_optimizer())
    first, rest = [array[:20] for array in data], [array[20:] for array in data]
    model.fit(*first, batch_size=4, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for one in (model, loaded):
        one.fit(*rest, batch_size=4, shuffle=False, verbose=0)
    np.testing.assert_equal(loaded.get_weights(), model.get_weights())
    # Two weights and two biases, each with a momentum and an average.
    assert len(loaded.optimizer.variables) == 2 + 4 + 4


def test_learning_rate_and_iterations_are_those_of_the_optimizer_inside():
    inside = optimizers.SGD(0.5)
    optimizer = Lookahead(Regularized(inside, l2=0.1), 10)
    optimizer.apply([np.zeros(1, "float32")], [keras.Variable(np.ones(1, "float32"))])
    optimizer.learning_rate = 0.25
    assert float(inside.learning_rate) == 0.25
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize(
    ("optimizer", "settings", "why"),
    [
        (lambda: optimizers.SGD(), {"updates": 0}, "updates=0, every=5.*pass 1 or more"),
        (lambda: optimizers.SGD(), {"momentum": 2}, "momentum=2.*pass a number from 0 to 1"),
        (lambda: optimizers.LossScaleOptimizer(optimizers.SGD()), {}, "Put Lookahead inside"),
        (lambda: optimizers.SGD(loss_scale_factor=2.0), {}, "pass loss_scale to convoy"),
        (lambda: optimizers.SGD(gradient_accumulation_steps=2), {}, "pass gradient_accumulation"),
    ],
)
def test_what_it_cannot_go_around_is_refused(optimizer, settings, why):
    with pytest.raises(ValueError, match=f"(?i){why}"):
        Lookahead(optimizer(), **({"updates": 10} | settings))
