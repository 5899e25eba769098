"""Gradient accumulation over micro-batches of a step that is not Keras's."""

import jax.numpy as jnp
import numpy as np
import pytest
from convoy.engine.data.placement import Placement
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import State
from convoy.engine.step.accumulate import accumulate

SOURCE = np.array([1, 2, 3, 4, 5, 6], np.float32)


def step(state, position):
    """Return a micro-batch as its gradient, and count it in the metrics."""
    source, index = position
    value = jnp.asarray(source)[index]
    counted = state._replace(metrics=[state.metrics[0] + 1])
    return counted, [value], {"last": value}


def run(index, **options):
    config = ExecutionConfig(Placement(None), **options)
    accumulating = accumulate(step, config, lambda state, position: [])
    return accumulating(State([], [], [], [jnp.int32(0)]), (SOURCE, jnp.int32(index)))


def test_one_micro_batch_is_the_step_itself():
    assert accumulate(step, ExecutionConfig(Placement(None)), None) is step


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 5.0), ("sum", 15.0)])
def test_gradients_of_an_updates_micro_batches_are_reduced(reduction, expected):
    _, (gradient,), _ = run(1, gradient_accumulation=3, accumulation_reduction=reduction)
    np.testing.assert_allclose(gradient, expected)


def test_state_and_logs_are_those_after_the_last_micro_batch():
    state, _, logs = run(0, gradient_accumulation=3)
    assert state.metrics == [3]
    assert logs == {"last": 3}


def test_gradients_are_added_up_in_another_type():
    _, (gradient,), _ = run(0, gradient_accumulation=2, accumulation_dtype="float16")
    assert gradient.dtype == jnp.float16
