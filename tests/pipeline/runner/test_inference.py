"""Evaluating and predicting in stages gives what stock Keras gives."""

import convoy
import keras
import numpy as np
import pytest
from keras import layers
from tests.equivalence.side_by_side import assert_same, make_convoy, make_stock

pytestmark = pytest.mark.integration

SAMPLES = 22  # not a multiple of the batch, nor of replicas


def network(steps):
    """A skip over two stages, two inputs, two outputs of which one is an input, statistics."""
    left, right = keras.Input((6, 6, 2), name="left"), keras.Input((3,), name="right")
    x = first = layers.Conv2D(4, 3, padding="same", name="a")(left)
    x = layers.BatchNormalization(name="b")(x)
    x = layers.Dropout(0.5, name="c")(layers.Add(name="d")([x, first]))
    x = layers.Conv2D(4, 3, padding="same", name="e", kernel_regularizer="l2")(x)
    x = layers.Add(name="f")([x, first])
    x = layers.Concatenate(name="g")([layers.Flatten(name="h")(x), right])
    outputs = {"one": layers.Dense(3, "softmax", name="one")(x), "same": right}
    model = keras.Model([left, right], outputs)
    model.compile(
        "sgd",
        {"one": "sparse_categorical_crossentropy", "same": "mse"},
        metrics={"one": ["accuracy"], "same": ["mae"]},
        steps_per_execution=steps,
    )
    return model


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(SAMPLES, 6, 6, 2)).astype("float32")
    return [x, rng.normal(size=(SAMPLES, 3)).astype("float32")], rng.integers(0, 3, SAMPLES)


def compare(samples, cuts, **strategy):
    x, y = samples
    y = {"one": y.astype("int32"), "same": 2 * x[1]}
    weight = dict.fromkeys(y, np.linspace(0.5, 2, SAMPLES).astype("float32"))
    stock, model = make_stock(network), make_convoy(network, 2, **strategy)
    for each in (stock, model):  # statistics that are not those of a fresh model
        each.get_layer("b").moving_variance.assign([0.5, 1, 2, 3])
    convoy.split(model, cuts)

    def outcome(each):
        return (
            each.evaluate(x, y, batch_size=4, sample_weight=weight, verbose=0, return_dict=True),
            each.predict(x, batch_size=4, verbose=0),
            each.predict_on_batch([part[:4] for part in x]),
            each.test_on_batch(
                [part[:4] for part in x], {k: v[:4] for k, v in y.items()}, return_dict=True
            ),
        )

    found = [np.asarray(leaf) for leaf in keras.tree.flatten(outcome(model))]
    assert_same(found, [np.asarray(leaf) for leaf in keras.tree.flatten(outcome(stock))])
    return model


@pytest.mark.slow
def test_three_stages(samples):
    model = compare(samples, ["d", "f"], devices=3)
    places = [model.get_layer(name).kernel.value.devices().pop().id for name in ("a", "e", "one")]
    assert places == [0, 1, 2]


def test_two_replicas_of_two_stages_stream_their_data(samples):
    compare(samples, ["f"], devices=4, data_budget=0)


def test_more_micro_batches_than_may_be_on_their_way(rng):
    def make(steps):
        model = keras.Sequential([keras.Input((3,)), layers.Dense(3), layers.Dense(2, name="b")])
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    model = make_convoy(make, 40, devices=2)
    convoy.split(model, ["b"])
    x = rng.normal(size=(40, 3)).astype("float32")
    assert_same(
        model.predict(x, batch_size=1, verbose=0),
        make_stock(make).predict(x, batch_size=1, verbose=0),
    )
