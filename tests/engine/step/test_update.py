"""The weight update around a step that returns given gradients."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from convoy.engine.numerics.loss_scale import StaticLossScale
from convoy.engine.numerics.numerics import Numerics, Settings
from convoy.engine.state import State
from convoy.engine.step.update import apply_rounding, update


@pytest.fixture
def variable():
    return keras.Variable([1.0, 2.0])


@pytest.fixture
def optimizer(variable):
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build([variable])
    return optimizer


def run(optimizer, variable, gradient, settings=Settings()):  # noqa: B008 - it is frozen
    state = State(
        [variable.value],
        [],
        [v.value for v in optimizer.variables],
        [],
        [v.value for v in Numerics(settings).variables],
    )

    def step(state, position):
        return state, [jnp.asarray(gradient, jnp.float32)], {"position": position}

    return update(step, optimizer, settings)(state, 3)


def test_applies_the_optimizer_and_passes_logs_on(optimizer, variable):
    state, logs = run(optimizer, variable, [2.0, 4.0])
    np.testing.assert_allclose(state.trainable[0], [0.0, 0.0])
    assert state.optimizer[0] == 1
    assert logs == {"position": 3}


def test_divides_gradients_by_the_loss_scale(optimizer, variable):
    settings = Settings(loss_scaling=StaticLossScale(4))
    state, _ = run(optimizer, variable, [8.0, 16.0], settings)
    np.testing.assert_allclose(state.trainable[0], [0.0, 0.0])


def test_skips_an_update_whose_gradients_overflow(optimizer, variable):
    settings = Settings(loss_scaling=StaticLossScale(4))
    state, _ = run(optimizer, variable, [np.inf, 1.0], settings)
    np.testing.assert_array_equal(state.trainable[0], [1.0, 2.0])
    assert state.optimizer[0] == 0
    skipped = Numerics(settings).logs(state.numerics)["skipped_updates"]
    assert skipped == 1


def test_rounds_16_bit_weights_to_a_neighbour():
    weights = keras.Variable(np.ones(1000), dtype="bfloat16")
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([weights])
    step = 2.0**-10  # an eighth of the distance of bfloat16's numbers below one
    trainable, _ = apply_rounding(
        optimizer,
        [v.value for v in optimizer.variables],
        [jnp.full(1000, step, jnp.bfloat16)],
        [weights.value],
        _key(),
        (range(1), range(len(optimizer.variables))),
    )
    values = np.asarray(trainable[0], np.float32)
    assert set(np.unique(values)) == {1.0, 1.0 - 2.0**-8}
    np.testing.assert_allclose(values.mean(), 1 - step, atol=2.0**-11)


def _key():
    import jax

    return jax.random.key(0)
