"""16 bits, loss scaling and stochastic rounding are in stages what they are in the whole model."""

import convoy
import keras
import numpy as np
import pytest
from convoy import precision
from convoy.engine.prepared_model import PreparedModel
from convoy.optimizers import LARS, Lookahead, Regularized
from keras import layers
from tests.equivalence.side_by_side import HALF_TOLERANCE, assert_same, make_convoy, state

pytestmark = pytest.mark.integration

slow = pytest.mark.slow
CUTS = ["b", "d"]


def network(optimizer=None):
    def make(steps):
        x = inputs = keras.Input((6, 6, 2))
        x = first = layers.Conv2D(4, 3, padding="same", activation="tanh", name="a")(x)
        x = layers.Conv2D(4, 3, padding="same", activation="tanh", name="b")(x)
        x = layers.Flatten(name="d")(layers.Add(name="c")([x, first]))
        x = layers.Activation("softmax", dtype="float32")(layers.Dense(3, name="e")(x))
        model = keras.Model(inputs, x)
        model.compile(
            optimizer() if optimizer else keras.optimizers.SGD(0.05, momentum=0.9),
            "sparse_categorical_crossentropy",
            steps_per_execution=steps,
            auto_scale_loss=False,
        )
        return model

    return make


def compare(word, optimizer=None, *, replicas=1, size=1.0, schedule="1f1b", **strategy):
    """Train the same in stages, on four devices at most, and in one piece; return the history."""
    cuts = CUTS[replicas - 1 :]
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 32).astype("int32")
    x = (size * rng.normal(size=(len(y), 6, 6, 2))).astype("float32")
    found = []
    for stages in (1, len(cuts) + 1):
        model = make_convoy(
            network(optimizer),
            8,
            devices=replicas * stages,
            precision=word,
            gradient_accumulation=4 // replicas,
            **strategy,
        )
        if stages > 1:
            convoy.split(model, cuts)
            model.set_pipelining_options(schedule=schedule)
        history = model.fit(x, y, batch_size=2, epochs=3, verbose=0).history
        carried = [np.asarray(v.value) for v in PreparedModel.of(model).numerics.variables[:1]]
        found.append((history, state(model), carried))
    assert_same(*found[::-1], tolerance=HALF_TOLERANCE.get(precision.find(word).policy))
    return found[0][0]


@slow
@pytest.mark.parametrize("word", ["16.32", "16.16", "bf16.32", "bf16.16"])
def test_a_word_without_scaling(word):
    compare(word)


@slow
@pytest.mark.parametrize(("replicas", "schedule"), [(1, "1f1b"), (1, "zero-bubble"), (2, "gpipe")])
def test_a_static_loss_scale(replicas, schedule):
    compare("32.32", loss_scale=1024, replicas=replicas, schedule=schedule)


@pytest.mark.parametrize(
    ("word", "replicas", "schedule", "rounding"),
    [
        ("16.16", 1, "zero-bubble", "on"),
        pytest.param("16.32", 1, "gpipe", "off", marks=slow),
        pytest.param("16.32", 2, "1f1b", "off", marks=slow),
    ],
)
def test_an_automatic_loss_scale_that_leaves_updates_out(word, replicas, schedule, rounding):
    history = compare(
        word,
        loss_scale=convoy.AutomaticLossScale(initial=2.0**14, period=2),
        size=48.0,
        replicas=replicas,
        schedule=schedule,
        stochastic_rounding=rounding,
    )
    assert history["skipped_updates"][-1] > 0
    assert len(set(history["loss_scaling_factor"])) > 1


@slow
@pytest.mark.parametrize("word", ["bf16.16", "16.16"])
def test_stochastic_rounding_draws_the_same_numbers(word):
    compare(word, stochastic_rounding="on")


@slow
def test_both_with_a_norm_over_all_stages():
    compare(
        "16.16",
        lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1),
        stochastic_rounding="on",
        loss_scale=256,
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda: LARS(0.05), marks=slow, id="lars"),
        pytest.param(
            lambda: Regularized(
                keras.optimizers.SGD(0.05, momentum=0.9), l2=0.01, weight_decay=0.1
            ),
            marks=slow,
            id="regularized",
        ),
    ],
)
def test_optimizers_of_our_own(optimizer):
    compare("32.32", optimizer)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            r"scales the loss by itself.*Pass loss_scale='auto' or a number to the strategy",
        ),
        (
            lambda: Regularized(keras.optimizers.SGD(global_clipnorm=1.0), l2=0.1),
            "has global_clipnorm=1.0, but cannot compute a norm",
        ),
        (
            lambda: Lookahead(Regularized(keras.optimizers.SGD(global_clipnorm=1.0), l2=0.1), 9),
            "has global_clipnorm=1.0, but cannot compute a norm",
        ),
        (
            lambda: keras.optimizers.SGD(gradient_accumulation_steps=2),
            "accumulates gradients by itself",
        ),
    ],
)
def test_optimizers_that_cannot_be_divided_are_refused(optimizer, message):
    with pytest.raises(ValueError, match=message):
        compare("32.32", optimizer)
