"""The programs of a stage compute what JAX's own gradient of its function is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.engine.numerics.loss_scale import StaticLossScale
from convoy.pipeline.runner.stage_forward import StageInputs
from convoy.pipeline.runner.stage_program import BackwardInputs, StageProgram

W = jnp.linspace(-1.0, 1.0, 12, dtype=jnp.float32).reshape(3, 4)
X = jnp.linspace(0.5, 2.0, 6, dtype=jnp.float32).reshape(2, 3)
CLASSES = jnp.array([1, 0], jnp.int32)
OUTPUT_GRADIENT = jnp.linspace(1.0, 3.0, 8, dtype=jnp.float32).reshape(2, 4)


def stage(trainable, received, inputs):
    """A layer with a loss of its own, statistics, and an integer that is passed on."""
    (weights,), (x, classes) = trainable, received
    y = jnp.tanh(x @ weights)
    own = jnp.sum(weights**2)
    statistics = [0.5 * inputs.non_trainable[0] + jnp.mean(y)]
    return ((y, classes + 1), own), (statistics, [], inputs.loss + own)


def make(activation_checkpointing=False, gradient_factor=1.0, **settings):
    return StageProgram(
        stage, lambda *_: (), gradient_factor, activation_checkpointing, lambda f: f, **settings
    )


def inputs():
    return StageInputs([jnp.float32(2.0)], (), [], jnp.float32(10.0))


def forward(program, scaled=False):
    return program.forward([W], (X, CLASSES), inputs(), scaled)


def backward_inputs(result, loss_scale=None):
    return BackwardInputs([W], result.residuals, ([OUTPUT_GRADIENT], []), loss_scale)


def accumulators():
    return [jnp.zeros_like(W)]


def expected_gradients(factor=1.0):
    def loss(weights, x):
        (outputs, own), _ = stage([weights], (x, CLASSES), inputs())
        return jnp.sum(outputs[0] * OUTPUT_GRADIENT) + factor * own

    return jax.grad(loss, argnums=(0, 1))(W, X)


def test_a_forward_pass_returns_outputs_statistics_and_the_loss_so_far():
    result = forward(make())
    np.testing.assert_allclose(result.outputs[0], np.tanh(X @ W), rtol=1e-6)
    assert result.outputs[1].tolist() == [2, 1]
    assert result.loss == pytest.approx(10 + float(jnp.sum(W**2)))
    assert result.non_trainable[0] == pytest.approx(1.0 + float(jnp.mean(jnp.tanh(X @ W))))


@pytest.mark.parametrize("activation_checkpointing", [False, True])
def test_a_backward_pass_returns_the_gradients(activation_checkpointing):
    program = make(activation_checkpointing)
    received, added, counts, done = program.backward(
        backward_inputs(forward(program)), accumulators(), ()
    )
    of_weights, of_input = expected_gradients()
    np.testing.assert_allclose(added[0], of_weights, rtol=1e-5)
    (gradient,) = received  # the integers have none
    np.testing.assert_allclose(gradient, of_input, rtol=1e-5)
    assert (counts, done.shape) == ((), ())


@pytest.mark.parametrize("activation_checkpointing", [False, True])
def test_two_halves_are_the_backward_pass(activation_checkpointing):
    program = make(activation_checkpointing)
    given = backward_inputs(forward(program))
    received, shared, _ = program.backward_input(given)
    added, _, _ = program.backward_weights(given, shared, accumulators(), ())
    of_weights, of_input = expected_gradients()
    np.testing.assert_allclose(received[0], of_input, rtol=1e-5)
    np.testing.assert_allclose(added[0], of_weights, rtol=1e-5)


def test_gradients_are_scaled_and_added_to_what_is_accumulated():
    program = make(gradient_factor=0.25)
    given = backward_inputs(forward(program))
    _, added, _, _ = program.backward(given, [jnp.full_like(W, 3.0)], ())
    np.testing.assert_allclose(added[0], 3.0 + 0.25 * expected_gradients()[0], rtol=1e-5)


def test_gradients_of_several_readers_add_up():
    program = make()
    result = forward(program)
    halves = [OUTPUT_GRADIENT / 2, OUTPUT_GRADIENT / 2]
    given = BackwardInputs([W], result.residuals, (halves, []), None)
    received, *_ = program.backward(given, accumulators(), ())
    np.testing.assert_allclose(received[0], expected_gradients()[1], rtol=1e-5)


def test_the_loss_scale_multiplies_the_stages_own_loss_and_gradients_are_counted():
    program = make(loss_scaling=StaticLossScale(8.0))
    result = forward(program, scaled=True)
    zeros = (jnp.float32(0), jnp.float32(0))
    given = backward_inputs(result, loss_scale=jnp.float32(8.0))
    _, added, counts, _ = program.backward(given, accumulators(), zeros)
    np.testing.assert_allclose(added[0], expected_gradients(factor=8.0)[0], rtol=1e-5)
    assert len(counts) == 2


def test_inputs_and_outputs_are_residuals_without_a_copy():
    result = forward(make())
    computed, existing = result.residuals
    assert any(value is X for value in existing)  # for the gradient of the weights
    assert any(value is result.outputs[0] for value in existing)  # for that of tanh
    assert not computed


def test_a_stage_that_recomputes_keeps_its_inputs_alone():
    given = inputs()
    program = make(activation_checkpointing=True)
    received, kept = program.forward([W], (X, CLASSES), given, False).residuals
    assert received[0] is X
    assert kept is given


def test_every_program_is_handed_to_the_observer_by_its_name():
    names = []

    def observe(name, program):
        names.append(name)
        return program

    make(program=observe)
    assert names == ["forward", "backward", "backward input", "backward weights"]
