"""Replicas that diverge in a step, and agree after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.engine.data.placement import AXIS, REPLICATED
from convoy.engine.state import State
from convoy.engine.step.all_reduce import reducer, replicas_in_trace
from convoy.engine.step.replicate import (
    SEED_STRIDE,
    Roles,
    over_replicas,
    replicate,
    replicate_gradients,
)

ROLES = Roles(seeds=(True, False), aggregations=("sum", "mean"), global_metrics=(False, False))
STATE = State(
    trainable=[jnp.float32(1)],
    non_trainable=[jnp.uint32(7), jnp.float32(0)],
    optimizer=[],
    metrics=[jnp.float32(10), jnp.float32(0)],
)
POSITION = (jnp.float32(0), jnp.int32(0))


@pytest.fixture(scope="module")
def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()[:2]), (AXIS,))


def step(state, position):
    """Add the number of the replica to everything that is floating."""
    own = jax.lax.axis_index(AXIS).astype(jnp.float32)
    new = state._replace(
        non_trainable=[state.non_trainable[0] + jnp.uint32(1), own],
        metrics=[state.metrics[0] + own + 1, own],
    )
    return new, {"own": own, "seed": state.non_trainable[0], "replicas": replicas_in_trace()}


def run(function, mesh, results):
    return over_replicas(function, mesh, (REPLICATED, REPLICATED), results)(STATE, POSITION)


def test_statistics_are_averaged_and_metrics_added_up(mesh):
    state, _ = run(
        lambda state, position: replicate(_without_seed(step), ROLES)(state, position),
        mesh,
        (REPLICATED, REPLICATED),
    )
    np.testing.assert_allclose(state.non_trainable[1], 0.5)
    np.testing.assert_allclose(state.metrics[0], 10 + 1 + 2)
    np.testing.assert_allclose(state.metrics[1], 0.5)
    assert state.non_trainable[0] == 8


def test_each_replica_has_its_own_random_stream(mesh):
    def seeds(state, position):
        found = []

        def recording(state, position):
            found.append(state.non_trainable[0])
            return _without_seed(step)(state, position)

        replicate(recording, ROLES)(state, position)
        return jax.lax.all_gather(found[0], AXIS)

    stride = np.uint32(SEED_STRIDE)
    np.testing.assert_array_equal(run(seeds, mesh, REPLICATED), [7, np.uint32(7) + stride])


def test_gradients_are_reduced(mesh):
    def gradients(state, position):
        own = jax.lax.axis_index(AXIS).astype(jnp.float32)
        return state, [own], {}

    for reduction, expected in (("mean", 0.5), ("sum", 1.0)):
        replicated = replicate_gradients(gradients, ROLES, reducer(reduction, 0))
        _, (found,), _ = run(replicated, mesh, (REPLICATED, REPLICATED, REPLICATED))
        np.testing.assert_allclose(found, expected)


def test_logs_are_averaged_and_the_step_knows_its_replicas(mesh):
    _, logs = run(replicate(_without_seed(step), ROLES), mesh, (REPLICATED, REPLICATED))
    np.testing.assert_allclose(logs["own"], 0.5)
    assert logs["replicas"] == 2


def _without_seed(step):
    def wrapped(state, position):
        state, logs = step(state, position)
        return state, {"own": logs["own"], "replicas": jnp.int32(logs["replicas"])}

    return wrapped
