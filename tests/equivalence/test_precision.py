"""Precision words, loss scaling and what they touch: the same as stock Keras with the same policy.

Upstream's arithmetic cases that are here: `test_optimizers` (a loss-scaled gradient is divided
again) and `test_batch_norm` with loss scaling 900. Those of single numbers are in
`tests/test_precision.py`, `tests/engine/` and `tests/optimizers/`.
"""

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy import precision
from convoy.engine.numerics import numerics
from convoy.engine.step import all_reduce
from keras import layers

from . import models
from .side_by_side import (
    HALF_TOLERANCE,
    assert_same,
    assert_states_within_half_precision,
    make_convoy,
    make_stock,
    state,
)

slow = pytest.mark.slow
WORDS = ("32.32", "16.32", "16.16", "bf16.32", "bf16.16")


@pytest.fixture
def xy(table):
    return table[0][:144], table[2][:144]


def with_policy(word, make):
    """Make a model under stock Keras with the policy that a word stands for."""

    def made(steps):
        with precision.find(word).scope():
            return make(steps)

    return made


def cnn(steps):
    model = keras.Sequential(
        [
            keras.Input((10, 10, 1)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(10),
            layers.Softmax(dtype="float32"),
        ]
    )
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(0.01), loss, steps_per_execution=steps)
    return model


def residual(steps):
    """Make a network in which casts, addition and ReLU are part of the normalisation's kernel."""
    inputs = keras.Input((10, 10, 1))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(inputs)))
    y = layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", use_bias=False)(x))
    x = layers.MaxPooling2D(2)(layers.ReLU()(layers.Add()([x, y])))
    x = layers.Dense(10)(layers.Flatten()(x))
    model = keras.Model(inputs, layers.Softmax(dtype="float32")(x))
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(0.01), loss, steps_per_execution=steps)
    return model


def learn(model, xy, batch_size, epochs=2):
    settings = {"batch_size": batch_size, "epochs": epochs, "verbose": 0}
    history = model.fit(*xy, **settings).history
    # What a strategy's loss scale adds to the history is not in that of stock Keras.
    return {name: history[name] for name in history if name not in numerics.LOGS}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=slow)])
def test_a_word_is_the_policy_of_stock_keras(xy, word, replicas):
    def run(model, batch_size):
        history = learn(model, xy, batch_size)
        return history, model.predict(xy[0], batch_size=batch_size, verbose=0)

    def make(steps):
        # Under 16.32 Keras scales the loss by 2**15 at first, and whether that overflows depends on
        # the size of the batch: half of it is not comparable.
        return models.classifier(steps, auto_scale_loss=replicas == 1)

    stock = make_stock(with_policy(word, make))
    expected = run(stock, 24), state(stock)
    model = make_convoy(make, 4, devices=replicas, precision=word)
    actual = run(model, 24 // replicas), state(model)
    assert_same(actual, expected, tolerance=HALF_TOLERANCE.get(precision.find(word).policy))


def three_layers(steps):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "tanh", name="first"),
            layers.Dense(8, "tanh", name="second"),
            layers.Dense(3),
            layers.Softmax(dtype="float32"),
        ]
    )
    loss = "sparse_categorical_crossentropy"
    # Half of a batch overflows at another loss scale, so Keras does not scale the loss here.
    model.compile(models.momentum(), loss, steps_per_execution=steps, auto_scale_loss=False)
    return model


DIVISIONS = {
    "accumulation": {"gradient_accumulation": 2},
    "replicas": {"devices": 2, "gradient_accumulation": 2},
    "float32 sums": {"devices": 2, "gradient_accumulation": 2, "accumulation_dtype": "float32"},
    "stages": {"devices": 2, "gradient_accumulation": 4},
}


@pytest.mark.parametrize(
    ("word", "division"),
    [
        pytest.param(word, division, marks=() if (word, division) in fast else slow)
        for fast in [{("bf16.32", "replicas"), ("16.16", "stages"), ("bf16.16", "accumulation")}]
        for word in WORDS[1:]
        for division in DIVISIONS
    ],
)
def test_an_update_in_parts_is_that_of_stock_keras_with_one_batch(xy, word, division):
    stock = make_stock(with_policy(word, three_layers))
    expected = learn(stock, xy, 24), state(stock)
    strategy = DIVISIONS[division]
    model = make_convoy(three_layers, 4, precision=word, **strategy)
    parts = strategy["gradient_accumulation"]
    if division == "stages":
        convoy.split(model, ["second"])
    else:
        parts *= strategy.get("devices", 1)
    actual = learn(model, xy, 24 // parts), state(model)
    assert_same(actual, expected, tolerance=HALF_TOLERANCE[precision.find(word).policy])


@pytest.mark.parametrize(
    ("word", "sums", "exchanged"),
    [
        ("bf16.32", None, "float32"),
        ("bf16.16", None, "bfloat16"),
        ("bf16.16", "float32", "float32"),
    ],
)
def test_gradients_are_exchanged_in_the_type_of_the_strategy(
    xy, monkeypatch, word, sums, exchanged
):
    found, plain = [], all_reduce._sum
    monkeypatch.setattr(all_reduce, "_sum", lambda x: found.append(x) or plain(x))
    model = make_convoy(
        three_layers,
        6,
        precision=word,
        devices=2,
        gradient_accumulation=2,
        accumulation_dtype=sums,
    )
    learn(model, xy, 6, epochs=1)
    weights = sum(variable.size for variable in map(np.asarray, model.trainable_variables))
    assert {str(x.dtype) for x in found if x.size >= weights} == {exchanged}


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (cnn, "16.32"),
        pytest.param(cnn, "bf16.32", marks=slow),
        pytest.param(residual, "16.32", marks=slow),
        (residual, "bf16.32"),
    ],
)
def test_a_word_for_images(images, make, word):
    stock = make_stock(with_policy(word, make))
    expected = learn(stock, images, 20), state(stock)
    model = make_convoy(make, 3, precision=word)
    actual = learn(model, images, 20), state(model)
    in_float32 = make_stock(make)
    learn(in_float32, images, 20)
    tolerance = HALF_TOLERANCE[precision.find(word).policy]
    assert_same(actual[0], expected[0], tolerance=tolerance)
    assert_states_within_half_precision(actual[1], expected[1], state(in_float32), tolerance)


def schedule(rate):
    return keras.optimizers.schedules.CosineDecay(rate, 30)


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(schedule(0.1)),
    "momentum": lambda: keras.optimizers.SGD(schedule(0.05), momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(schedule(0.01)),
    "lars": lambda: convoy.optimizers.LARS(schedule(0.5), weight_decay=1e-3, eeta=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(schedule(0.01)),
    "l2": lambda: convoy.optimizers.Regularized(keras.optimizers.Adam(0.01), l2=1e-2),
    "decay": lambda: convoy.optimizers.Regularized(
        keras.optimizers.SGD(schedule(0.05), momentum=0.9), weight_decay=1e-2
    ),
}


@pytest.mark.parametrize(
    "name", [n if n in ("momentum", "lars") else pytest.param(n, marks=slow) for n in OPTIMIZERS]
)
@pytest.mark.parametrize("replicas", [1, pytest.param(4, marks=slow)])
def test_any_optimizer_with_a_schedule_with_and_without_loss_scaling(xy, name, replicas):
    def make(steps):
        return models.classifier(steps, optimizer=OPTIMIZERS[name]())

    stock = make_stock(make)
    expected = learn(stock, xy, 24), state(stock)
    for loss_scale in (None, 1024, "auto"):
        model = make_convoy(make, 4, devices=replicas, loss_scale=loss_scale)
        actual = learn(model, xy, 24 // replicas), state(model)
        assert_same(actual, expected)


@pytest.mark.parametrize(
    "name", ["adam", *(pytest.param(n, marks=slow) for n in ("sgd", "momentum", "lars"))]
)
def test_powers_of_two_change_no_bit_in_float32(xy, name):
    outcomes = []
    for loss_scale in (1, 1024, "auto"):
        model = make_convoy(
            lambda steps: models.classifier(steps, optimizer=OPTIMIZERS[name]()),
            4,
            loss_scale=loss_scale,
        )
        outcomes.append((learn(model, xy, 24), state(model)))
    assert_same(outcomes[1], outcomes[0], exact=True)
    assert_same(outcomes[2], outcomes[0], exact=True)


@pytest.mark.parametrize("word", ["16.32", "16.16"])
def test_a_static_scale_in_half_precision_is_the_one_of_keras(xy, word):
    def make(factor):
        def made(steps):
            optimizer = models.momentum(loss_scale_factor=factor)
            return models.classifier(steps, optimizer=optimizer, auto_scale_loss=False)

        return made

    stock = make_stock(with_policy(word, make(1024.0)))
    expected = learn(stock, xy, 24), state(stock)
    model = make_convoy(make(None), 4, precision=word, loss_scale=1024)
    actual = learn(model, xy, 24), state(model)
    assert_same(actual, expected, tolerance=HALF_TOLERANCE[precision.find(word).policy])


def test_batch_norm_with_a_scale_that_is_no_power_of_two(images):
    """Upstream's case: scaling by 900 changes neither gradients nor statistics."""
    stock = make_stock(cnn)
    expected = learn(stock, images, 20), state(stock)
    model = make_convoy(cnn, 3, loss_scale=900)
    actual = learn(model, images, 20), state(model)
    assert_same(actual, expected)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_loss_scale_optimizer_of_keras_skips_and_grows_as_in_stock_keras(table, replicas):
    x, target = table[0][:144], table[1][:144].copy()
    target[48:72] *= 1e4  # overflows, so that the factor falls

    def make(steps):
        inner = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, 2.0**10, dynamic_growth_steps=3)
        return models.regressor(steps, optimizer=optimizer)

    def run(model, batch_size):
        return model.fit(x, target, batch_size=batch_size, shuffle=False, verbose=0) and None

    stock = make_stock(with_policy("16.32", make))
    expected = run(stock, 24), state(stock)
    model = make_convoy(make, 4, devices=replicas, precision="16.32")
    actual = run(model, 24 // replicas), state(model)
    assert_same(actual, expected, tolerance=HALF_TOLERANCE["mixed_float16"])
    assert int(model.optimizer.iterations) == 5


def hand_written(model, xy, batch, replicas, rule):
    """Train with automatic loss scaling by a plain loop over stock Keras's stateless calls."""
    optimizer = model.optimizer
    model.build((None, *xy[0].shape[1:]))
    optimizer.build(model.trainable_variables)
    weights = [v.value for v in model.trainable_variables]
    others = [v.value for v in model.non_trainable_variables]
    slots = [v.value for v in optimizer.variables]

    def scaled_loss(weights, x, y, factor):
        y_pred, _ = model.stateless_call(weights, others, x, training=True)
        return model.compute_loss(x, y, y_pred) * factor

    gradient = jax.jit(jax.grad(scaled_loss))
    factor, since, large, counted, skipped = rule.initial, 0, 0, 0, 0
    factors = []
    for start in range(0, len(xy[0]), batch):
        parts = [np.split(part[start : start + batch], replicas) for part in xy]
        each = [gradient(weights, x, y, np.float32(factor)) for x, y in zip(*parts, strict=True)]
        flat = np.concatenate([np.asarray(g, "float32").ravel() for one in each for g in one])
        large += int((~(np.abs(flat) <= rule.edge)).sum())
        counted += flat.size
        since += 1
        finite = bool(np.isfinite(flat).all())
        scaled = [np.mean(np.asarray(gs, "float32"), axis=0) for gs in zip(*each, strict=True)]
        if finite:
            weights, slots = optimizer.stateless_apply(
                slots, [g / np.float32(factor) for g in scaled], weights
            )
        else:
            skipped += 1
        if since == rule.period or not finite:
            falls = not finite or large / counted > rule.threshold
            proposed = factor / rule.step if falls else factor * rule.step
            factor = proposed if 1 <= proposed < rule.limit else factor
            since = large = counted = 0
        factors.append(factor)
    return factors, skipped, [np.asarray(w) for w in weights]


@pytest.mark.parametrize(
    ("word", "edge"),
    [
        ("16.32", 65504.0),
        ("32.32", 500.0),
        pytest.param("16.16", 65504.0, marks=slow),
        pytest.param("16.32", 500.0, marks=slow),
    ],
)
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=slow)])
def test_automatic_scaling_is_that_of_a_plain_loop(table, word, edge, replicas):
    x, target = table[0][:144], table[1][:144].copy()
    target[96:104] *= 100  # overflows once the factor has grown
    rule = convoy.AutomaticLossScale(initial=64.0, period=3, edge=edge)

    def make(steps):
        optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
        return models.regressor(steps, optimizer=optimizer, auto_scale_loss=False)

    plain = make_stock(with_policy(word, make))
    factors, skipped, weights = hand_written(plain, (x, target), 8, replicas, rule)
    steps = np.diff(factors)
    assert (steps > 0).any(), "the data is there to make the factor rise"
    assert (steps < 0).any(), "and fall"
    assert skipped > 0 or edge == 500, "and overflow"

    model = make_convoy(make, 4, devices=replicas, precision=word, loss_scale=rule)
    logs = model.fit(x, target, batch_size=8 // replicas, shuffle=False, verbose=0).history
    assert logs["loss_scaling_factor"] == [factors[-1]]
    assert logs["skipped_updates"] == [skipped]
    tolerance = HALF_TOLERANCE.get(precision.find(word).policy)
    assert_same([np.asarray(v) for v in model.trainable_variables], weights, tolerance=tolerance)


@pytest.mark.parametrize(
    ("replicas", "loss_scale"),
    [
        (2, 1024),
        pytest.param(1, None, marks=slow),
        pytest.param(4, None, marks=slow),
        pytest.param(1, 1024, marks=slow),
        pytest.param(2, None, marks=slow),
        pytest.param(4, 1024, marks=slow),
    ],
)
@pytest.mark.parametrize("clipping", ["clipvalue", "clipnorm", "global_clipnorm"])
def test_clipping_sees_the_whole_unscaled_gradient(xy, clipping, replicas, loss_scale):
    limit = {"clipvalue": 0.01, "clipnorm": 0.05, "global_clipnorm": 0.1}[clipping]

    def make(steps):
        return models.classifier(steps, optimizer=models.momentum(**{clipping: limit}))

    stock = make_stock(make)
    expected = learn(stock, xy, 24), state(stock)
    model = make_convoy(make, 4, devices=replicas, loss_scale=loss_scale)
    actual = learn(model, xy, 24 // replicas), state(model)
    assert_same(actual, expected)
    unclipped = make_stock(models.classifier)
    learn(unclipped, xy, 24)
    assert (unclipped.get_weights()[0] != stock.get_weights()[0]).any()


@slow
def test_rounding_of_16_bit_weights_is_near_to_training_in_32_bits(xy):
    """Rounded to nearest, steps of 1e-4 are lost; rounded by chance, they are not."""

    def make(steps):
        return models.classifier(steps, optimizer=keras.optimizers.SGD(2e-3))

    losses, start = {}, make_convoy(make, precision="bf16.16").get_weights()
    for word, rounding in (("bf16.32", "off"), ("bf16.16", "off"), ("bf16.16", "on")):
        model = make_convoy(make, 6, precision=word, stochastic_rounding=rounding)
        model.set_weights(start)
        losses[word, rounding] = learn(model, xy, 24, epochs=20)["loss"][-1]
    wide = losses["bf16.32", "off"]
    assert abs(losses["bf16.16", "on"] - wide) < 0.25 * abs(losses["bf16.16", "off"] - wide)
