import convoy
import keras
import numpy as np
import pytest
from convoy.train.flags import Options
from convoy.train.learning_rate import Constant
from convoy.train.optimizer import make_optimizer


def step(gradient, **options):
    """Return what becomes of a weight of 1 at a learning rate of 1."""
    optimizer = make_optimizer(Options(**options), Constant(1.0), 4, 10)
    weight = keras.Variable(np.ones(1, "float32"))
    optimizer.apply([np.full(1, gradient, "float32")], [weight])
    return float(weight.numpy()[0])


def test_decay_and_l2_draw_a_weight_to_zero():
    assert step(0.0) == 1
    assert step(0.0, weight_decay=0.1) == pytest.approx(0.9)
    assert step(0.0, l2_regularization=0.1) == pytest.approx(0.9)
    assert step(0.5) == pytest.approx(0.5)


def test_clipping():
    assert step(5.0, clip_norm=0.25) == pytest.approx(0.75)


def test_rmsprops_decay_follows_the_batch():
    params = {"momentum": 0, "base_decay_exponent": -4, "epsilon": 1e-3}
    options = Options(optimizer="rmsprop", optimizer_params=params)
    assert make_optimizer(options, Constant(1.0), 4, 10).rho == 1 - 4 / 16
    with pytest.raises(ValueError, match="rho would be -1"):
        make_optimizer(options, Constant(1.0), 32, 10)


def test_lars_and_adam():
    params = {"momentum": 0.9, "weight_decay": 1e-4, "eeta": 0.001, "epsilon": 0}
    lars = make_optimizer(Options(optimizer="lars", optimizer_params=params), Constant(1.0), 4, 10)
    assert isinstance(lars, convoy.optimizers.LARS)
    assert lars.layer_decay == 1e-4
    assert isinstance(
        make_optimizer(Options(optimizer="adam"), Constant(1.0), 4, 10), keras.optimizers.Adam
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lars"}, "has momentum, but weight_decay, eeta, epsilon is missing"),
        ({"optimizer_params": {}}, "has nothing, but momentum is missing"),
        ({"optimizer_params": {"momentum": 0, "eeta": 1}}, "eeta is unknown"),
        ({"optimizer": "adam", "momentum": 0.9}, "--momentum has no effect on --optimizer adam"),
    ],
)
def test_missing_and_unknown_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_optimizer(Options(**options), Constant(1.0), 4, 10)


def test_momentum_has_priority_over_the_parameters():
    for params in ({"momentum": 0.5, "nesterov": True}, {"nesterov": True}):
        options = Options(momentum=0.8, optimizer_params=params)
        optimizer = make_optimizer(options, Constant(1.0), 4, 10)
        assert (optimizer.momentum, optimizer.nesterov) == (0.8, True)


def test_adaptive_clipping():
    assert step(5.0, adaptive_clip=0.25) == pytest.approx(0.75)


def test_weights_are_averaged():
    optimizer = make_optimizer(Options(ema=0.5, momentum=0.0), Constant(1.0), 4, 10)
    weight = keras.Variable(np.ones(1, "float32"))
    for _ in range(2):
        optimizer.apply([np.ones(1, "float32")], [weight])
    assert float(weight.numpy()[0]) == -1
    optimizer.finalize_variable_values([weight])
    # The first average is the first weight, 0; the next is half of it and half of -1.
    assert float(weight.numpy()[0]) == pytest.approx(-0.5)


def test_weights_are_drawn_to_their_average():
    options = Options(lookahead=5, l2_regularization=1e-3)
    optimizer = make_optimizer(options, Constant(1.0), 4, 480)
    assert isinstance(optimizer, convoy.optimizers.Lookahead)
    assert (optimizer.every, optimizer.updates, optimizer.optimizer.l2) == (5, 480, 1e-3)
