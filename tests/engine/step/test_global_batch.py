"""Losses and statistics of a global batch, from operations that see a local batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.engine.data.placement import AXIS, REPLICATED
from convoy.engine.step.all_reduce import trace_for_replicas
from convoy.engine.step.global_batch import (
    Denominators,
    GlobalBatch,
    mean_denominator,
    mean_over_update,
    number_denominators,
    use_denominators,
)
from convoy.engine.step.replicate import over_replicas

LOSSES = jnp.array([1.0, 3.0])


def reduce(values, sample_weight=None, reduction="sum_over_batch_size"):
    """Reduce losses as Keras does."""
    weighted = values if sample_weight is None else values * sample_weight
    if reduction == "sum":
        return jnp.sum(weighted)
    if reduction == "mean_with_sample_weight":
        return jnp.sum(weighted) / jnp.sum(sample_weight)
    return jnp.mean(weighted)


def apply_mask(sample_weight, mask, dtype, reduction):
    return jnp.asarray(mask, dtype)


def test_a_mean_of_sums_over_local_batches_is_their_sum():
    batch = GlobalBatch(local_batches=3)
    assert batch.reduce_values(reduce, LOSSES, None, "sum") == 3 * 4
    assert batch.reduce_values(reduce, LOSSES) == 2


def test_one_local_batch_has_the_denominator_of_the_global_batch():
    weights, batch = jnp.array([1.0, 3.0]), GlobalBatch(1)
    loss = batch.reduce_values(reduce, LOSSES, weights, "mean_with_sample_weight")
    np.testing.assert_allclose(loss, (1 + 9) / 4)
    masked = batch.apply_mask(apply_mask, None, jnp.array([True, False]), "float32", "mean")
    np.testing.assert_allclose(masked, [1, 0])


def test_losses_are_weighted_by_their_part_of_the_mean_denominator():
    def run(weights):
        with trace_for_replicas(2):
            own = weights[jax.lax.axis_index(AXIS)]
            loss = GlobalBatch(2).reduce_values(reduce, LOSSES, own, "mean_with_sample_weight")
        return (jax.lax.pmean(loss, AXIS),)

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), (AXIS,))
    weights = jnp.array([[1.0, 1.0], [0.0, 4.0]])
    (loss,) = jax.jit(over_replicas(run, mesh, (REPLICATED,), (REPLICATED,)))(weights)
    np.testing.assert_allclose(loss, (1 + 3 + 0 + 12) / 6, rtol=1e-6)


def test_a_mask_that_keeps_nothing_gives_zero():
    mask = jnp.array([False, False])
    masked = GlobalBatch(1).apply_mask(apply_mask, None, mask, "float32", "mean")
    np.testing.assert_array_equal(masked, [0, 0])


def test_separate_programs_cannot_share_a_denominator():
    batch = GlobalBatch(1, separate_programs=4)
    with pytest.raises(ValueError, match="each of 4 micro-batches in a pipeline"):
        batch.reduce_values(reduce, LOSSES, jnp.ones(2), "mean_with_sample_weight")
    assert batch.reduce_values(reduce, LOSSES, jnp.ones(2)) == 2


def moments(x, axes, keepdims=False):
    axes = tuple(axes)
    return jnp.mean(x, axes, keepdims=keepdims), jnp.var(x, axes, keepdims=keepdims)


def on_four_replicas(run, samples):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), (AXIS,))
    return jax.jit(over_replicas(run, mesh, (REPLICATED,), (REPLICATED,)))(samples)[0]


def test_a_group_of_replicas_has_the_moments_of_all_of_its_samples():
    samples = jnp.arange(8.0).reshape(4, 2)

    def run(samples):
        with trace_for_replicas(4):
            own = samples[jax.lax.axis_index(AXIS)]
            batch = GlobalBatch(4, batch_norm_group=2)
            mean, variance = batch.moments(moments, own, [-1])
            found = jnp.stack([mean, variance])
        return (jax.lax.all_gather(found, AXIS),)

    found = on_four_replicas(run, samples)
    for replica in range(4):
        group = samples[replica // 2 * 2 : replica // 2 * 2 + 2]
        np.testing.assert_allclose(found[replica], [group.mean(), group.var()], rtol=1e-6)


def test_without_a_group_the_moments_are_those_of_the_local_batch():
    mean, variance = GlobalBatch(2).moments(moments, LOSSES, [0])
    assert (mean, variance) == (2, 1)


def test_moments_of_each_sample_are_not_shared_by_a_group():
    samples = jnp.arange(16.0).reshape(4, 2, 2)

    def run(samples):
        with trace_for_replicas(4):
            own = samples[jax.lax.axis_index(AXIS)]
            mean, _ = GlobalBatch(4, batch_norm_group=4).moments(moments, own, [-1])
        return (jax.lax.all_gather(mean, AXIS),)

    np.testing.assert_array_equal(on_four_replicas(run, samples), samples.mean(axis=-1))


def test_denominators_are_numbered_within_a_loss():
    denominators = Denominators(means=[jnp.float32(10), jnp.float32(20)])
    with use_denominators(denominators), number_denominators() as own:
        assert mean_denominator(jnp.float32(1)) == 10
        assert mean_denominator(jnp.float32(2)) == 20
    assert own == [1, 2]
    assert denominators.are_used


def test_unknown_denominators_are_those_of_the_local_batch():
    denominators = Denominators()
    assert mean_denominator(jnp.float32(5)) == 5
    with use_denominators(denominators), number_denominators():
        assert mean_denominator(jnp.float32(3)) == 3
    assert denominators.are_used


def test_the_mean_over_an_update_is_over_its_micro_batches():
    parts = jnp.array([[1.0, 10.0], [2.0, 20.0], [6.0, 60.0]])
    means = mean_over_update(lambda number: list(parts[number]), 3)
    np.testing.assert_allclose(means, [3, 30])
