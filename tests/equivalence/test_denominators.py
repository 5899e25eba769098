"""Losses that divide by a sum over the batch are those of the batch, however it is divided."""

import convoy
import keras
import numpy as np
import pytest
from keras import layers
from tests.equivalence.side_by_side import assert_same, make_convoy, make_stock, state

UPDATE = 16
IGNORED = 255


@pytest.fixture(scope="module")
def words():
    """Sequences that end early, most in the first half; a class and a number for each word."""
    rng = np.random.default_rng(3)
    x = rng.integers(1, 8, (2 * UPDATE, 6)).astype("int32")
    x[:UPDATE:2, 2:] = x[1, :] = 0
    classes = rng.integers(0, 4, x.shape).astype("int32")
    classes[3:9, 1:] = IGNORED
    return x, rng.normal(size=(*x.shape, 1)).astype("float32"), classes


def masked(steps):
    parts = [keras.Input((6,), dtype="int32"), layers.Embedding(8, 5, mask_zero=True)]
    model = keras.Sequential([*parts, layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=steps)
    return model


def three_losses(steps):
    """A mask that a layer makes, one that a loss makes, and none."""
    inputs = keras.Input((6,), dtype="int32")
    numbers = layers.Dense(1, name="numbers")(layers.Embedding(8, 5, mask_zero=True)(inputs))
    x = layers.Embedding(8, 3)(inputs)
    flat = layers.Dense(1, name="flat")(layers.Flatten()(x))
    ignoring = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED)
    model = keras.Model(inputs, [layers.Dense(4, name="classes")(x), numbers, flat])
    model.compile(
        "sgd",
        [ignoring, "mse", "mae"],
        loss_weights=[0.5, 2, 1],
        steps_per_execution=steps,
    )
    return model


def weighted(steps):
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model = keras.Sequential([keras.Input((6,)), layers.Dense(6), layers.Reshape((6, 1))])
    model.compile("sgd", loss, steps_per_execution=steps)
    return model


def targets(words, make):
    _, numbers, classes = words
    return [classes, numbers, numbers[:, 0]] if make is three_losses else numbers


def assert_same_in_shares(words, make, replicas, accumulation, **settings):
    x, y = words[0], targets(words, make)

    def train(model, replicas, accumulation):
        batch = UPDATE // (replicas * accumulation)
        history = model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0, **settings).history
        return history, model.evaluate(x, y, UPDATE // replicas, 0), state(model)

    model = make_convoy(make, accumulation, devices=replicas, gradient_accumulation=accumulation)
    assert_same(train(model, replicas, accumulation), train(make_stock(make), 1, 1))


SHARES = [(2, 2), *(pytest.param(*s, marks=pytest.mark.slow) for s in [(4, 1), (1, 4)])]


@pytest.mark.parametrize(("replicas", "accumulation"), SHARES)
@pytest.mark.parametrize("make", [masked, three_losses])
def test_a_masked_loss_is_the_mean_of_what_the_mask_keeps(words, make, replicas, accumulation):
    assert_same_in_shares(words, make, replicas, accumulation)


@pytest.mark.parametrize(("replicas", "accumulation"), SHARES)
def test_a_loss_divided_by_the_weights_of_its_samples(words, replicas, accumulation):
    weight = np.linspace(0, 3, words[0].size).astype("float32").reshape(words[0].shape)
    assert_same_in_shares(words, weighted, replicas, accumulation, sample_weight=weight)


def test_a_mask_with_weights_of_samples(words):
    weight = np.linspace(0, 3, words[0].size).astype("float32").reshape(words[0].shape)
    assert_same_in_shares(words, masked, 2, 2, sample_weight=weight)


def test_a_pipeline_refuses_a_loss_that_its_micro_batches_cannot_compute(words):
    model = make_convoy(three_losses, 2, devices=2, gradient_accumulation=2)
    convoy.split(model, ["flatten"])
    with pytest.raises(ValueError, match="each of 2 micro-batches in a pipeline has only its own"):
        model.fit(words[0], targets(words, three_losses), 4, verbose=0)
