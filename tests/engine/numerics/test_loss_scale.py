"""Loss scaling: the rule for the factor, step by step, and what a skipped update leaves alone."""

import convoy
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from convoy import AutomaticLossScale
from convoy.engine.numerics.loss_scale import StaticLossScale, find
from convoy.engine.prepared_model import PreparedModel

pytestmark = pytest.mark.integration


def decisions(rule, gradients):
    """Let a rule see the scaled gradients of one update after the other; return its factors."""
    scaling, factors = rule.begin(), []
    for gradient in gradients:
        gradient = [jnp.asarray(gradient)]
        scaling = rule.decide(rule.count(scaling, gradient), jnp.all(jnp.isfinite(gradient[0])))
        factors.append(float(scaling.loss_scale))
    return factors, scaling


FINE = np.ones(4, "float16")
OVERFLOWN = np.array([1, 1, 1, np.inf], "float16")


def test_the_factor_doubles_every_8_updates():
    factors, _ = decisions(AutomaticLossScale(), [FINE] * 24)
    assert factors == [1] * 7 + [2] * 8 + [4] * 8 + [8]


def test_the_factor_stays_below_its_limit():
    factors, _ = decisions(AutomaticLossScale(), [FINE] * 8 * 20)
    assert factors[-1] == max(factors) == 16384


def test_an_overflow_halves_it_at_once_and_begins_another_period():
    factors, scaling = decisions(AutomaticLossScale(8), [FINE, FINE, OVERFLOWN, *[FINE] * 8])
    assert factors == [8, 8, 4, *[4] * 7, 8]
    assert scaling.skipped == 1
    assert scaling.previous == 4


def test_the_factor_never_falls_below_1():
    factors, scaling = decisions(AutomaticLossScale(2), [OVERFLOWN] * 3)
    assert factors == [1, 1, 1]
    assert scaling.skipped == 3


@pytest.mark.parametrize(("large", "after"), [(0, 16), (1, 16), (2, 4)])
def test_too_large_a_share_above_the_edge_halves_it(large, after):
    # Of 200,000 elements in 2 updates, 1e-5 are 2: more than that is too many.
    gradient = np.ones(100_000, "float32")
    gradient[:large] = 9000
    rule = AutomaticLossScale(8, period=2, edge=2**13)
    factors, scaling = decisions(rule, [gradient, gradient])
    assert factors == [8, after]
    assert (scaling.large, scaling.counted, scaling.updates) == (0, 0, 0)


def test_no_number_counts_as_large():
    scaling = AutomaticLossScale().begin()
    scaling = AutomaticLossScale().count(scaling, [jnp.array([1.0, jnp.nan, -jnp.inf, 65504.0])])
    assert (scaling.large, scaling.counted) == (2, 4)


def test_other_constants():
    rule = AutomaticLossScale(initial=3, period=2, step=4, limit=50)
    factors, _ = decisions(rule, [FINE] * 6)
    assert factors == [3, 12, 12, 48, 48, 48]


@pytest.mark.parametrize(
    "constants",
    [
        {"initial": 0.5},
        {"initial": 32768},
        {"period": 0},
        {"period": 1.5},
        {"step": 1},
        {"limit": float("inf")},
        {"threshold": 0},
        {"threshold": 1},
        {"edge": 0},
    ],
)
def test_constants_without_a_meaning_are_refused(constants):
    (name,) = constants
    with pytest.raises(ValueError, match=rf"AutomaticLossScale\({name}="):
        AutomaticLossScale(**constants)


def test_what_the_strategy_takes():
    assert find(None) is None
    assert find(1024) == StaticLossScale(1024)
    assert find("auto") == AutomaticLossScale()
    rule = AutomaticLossScale(period=100)
    assert find(rule) is rule


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "dynamic", True])
def test_what_is_no_factor_is_refused(value):
    with pytest.raises(ValueError, match="is not a factor for the loss"):
        convoy.Strategy(loss_scale=value)


def dense(optimizer="sgd", **compilation):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse", **compilation)
    return model


def snapshot(model):
    return [np.array(v.value) for v in [*model.trainable_variables, *model.optimizer.variables]]


# 2**14 times the loss of an input of 100 is beyond float16, and the loss itself is not.
EXPLODING = np.full((4, 2), 100.0, "float32"), np.full((4, 2), -100.0, "float32")
CALM = np.full((4, 2), 1e-3, "float32"), np.full((4, 2), 1e-3, "float32")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("word", ["16.32", "16.16"])
@pytest.mark.parametrize("loss_scale", [2**14, AutomaticLossScale(2**14)])
def test_an_update_that_overflows_changes_nothing_and_is_counted(word, loss_scale, devices):
    with convoy.Strategy(devices, precision=word, loss_scale=loss_scale).scope():
        model = dense(keras.optimizers.SGD(0.01, momentum=0.9))
    model.train_on_batch(*CALM)
    before = snapshot(model)
    assert int(model.optimizer.iterations) == 1
    logs = model.train_on_batch(*EXPLODING, return_dict=True)
    for now, then in zip(snapshot(model), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert logs["skipped_updates"] == 1
    assert logs["loss_scaling_factor"] == (2**14 if loss_scale == 2**14 else 2**13)
    assert PreparedModel.of(model).numerics.loss_scale_state.skipped == 1
    model.train_on_batch(*CALM)
    assert int(model.optimizer.iterations) == 2


@pytest.mark.parametrize("rounding", ["off", "on"])
def test_one_replica_that_overflows_skips_the_update_of_all(rounding):
    strategy = convoy.Strategy(
        2, precision="16.16", loss_scale=AutomaticLossScale(2**14), stochastic_rounding=rounding
    )
    with strategy.scope():
        model = dense()
    model.train_on_batch(*CALM)
    before = snapshot(model)
    key = np.array(PreparedModel.of(model).numerics.variables[-1].value)
    mixed = [np.concatenate([calm, bad]) for calm, bad in zip(CALM, EXPLODING, strict=True)]
    model.train_on_batch(*mixed)
    for now, then in zip(snapshot(model), before, strict=True):
        np.testing.assert_array_equal(now, then)
    np.testing.assert_array_equal(PreparedModel.of(model).numerics.variables[-1].value, key)
    assert PreparedModel.of(model).numerics.loss_scale_state.loss_scale == 2**13


def test_replicas_add_up_their_statistics():
    counted = []
    for devices in (1, 2):
        with convoy.Strategy(devices, loss_scale="auto").scope():
            model = dense()
        model.fit(np.ones((8, 2)), np.ones((8, 2)), batch_size=2, epochs=1, verbose=0)
        counted.append(PreparedModel.of(model).numerics.loss_scale_state)
    # 6 weights; 4 updates by one replica, or 2 by two.
    assert (counted[0].counted, counted[0].updates) == (24, 4)
    assert (counted[1].counted, counted[1].updates) == (24, 2)


def test_a_model_without_weights_to_train(rng):
    with convoy.Strategy(loss_scale="auto").scope():
        model = dense()
        model.trainable = False
        model.compile("sgd", "mse")
    before = model.get_weights()
    model.train_on_batch(*CALM)
    np.testing.assert_equal(model.get_weights(), before)


def test_history_has_the_factor_and_the_skipped_updates():
    with convoy.Strategy(loss_scale=AutomaticLossScale(period=2)).scope():
        model = dense(steps_per_execution=3)
    history = model.fit(np.ones((16, 2)), np.ones((16, 2)), batch_size=4, epochs=2, verbose=0)
    assert history.history["loss_scaling_factor"] == [4, 16]
    assert history.history["skipped_updates"] == [0, 0]


def test_evaluation_and_lists_have_metrics_only():
    with convoy.Strategy(loss_scale=2).scope():
        model = dense()
    assert isinstance(model.train_on_batch(*CALM), float)
    assert list(model.evaluate(*CALM, return_dict=True, verbose=0)) == ["loss"]


def test_compiling_anew_starts_anew():
    with convoy.Strategy(loss_scale=AutomaticLossScale(period=1)).scope():
        model = dense()
    model.train_on_batch(*CALM)
    assert PreparedModel.of(model).numerics.loss_scale_state.loss_scale == 2
    model.compile("sgd", "mse")
    assert PreparedModel.of(model).numerics.loss_scale_state.loss_scale == 1
    model.train_on_batch(*CALM)
    assert PreparedModel.of(model).numerics.loss_scale_state.loss_scale == 2


def test_takes_the_place_of_the_one_that_keras_adds():
    with convoy.Strategy(precision="16.32", loss_scale=8).scope():
        model = dense()
    assert type(model.optimizer) is keras.optimizers.SGD


def test_without_one_keras_adds_its_own():
    with convoy.Strategy(precision="16.32").scope():
        model = dense()
    assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (lambda: keras.optimizers.SGD(loss_scale_factor=4.0), r"has loss_scale_factor=4\.0"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            "is a LossScaleOptimizer",
        ),
    ],
)
def test_a_loss_is_not_scaled_twice(optimizer, why):
    with convoy.Strategy(loss_scale=8).scope():
        model = dense(optimizer())
    with pytest.raises(ValueError, match=f"{why}.*would be scaled twice"):
        model.fit(*CALM, verbose=0)


def test_a_saved_model_is_plain_keras(tmp_path):
    with convoy.Strategy(precision="16.32", loss_scale="auto", stochastic_rounding="on").scope():
        model = dense(keras.optimizers.Adam())
    model.train_on_batch(*CALM)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for now, then in zip(snapshot(loaded), snapshot(model), strict=True):
        np.testing.assert_array_equal(now, then)
    loaded.fit(*CALM, verbose=0)
