import jax
import numpy as np
import pytest
from convoy.engine.data.placement import AXIS
from convoy.engine.step.all_reduce import reducer, total

REPLICAS = 2

P = jax.sharding.PartitionSpec


def on_replicas(function, tree):
    """Give each replica its own row of every array; return what all of them then hold."""
    mesh = jax.sharding.Mesh(jax.devices()[:REPLICAS], (AXIS,))
    body = jax.shard_map(
        lambda rows: function(jax.tree.map(lambda row: row[0], rows)),
        mesh=mesh,
        in_specs=P(AXIS),
        out_specs=P(),
        check_vma=False,
    )
    exchanges = str(jax.make_jaxpr(body)(tree)).count("psum")
    return jax.jit(body)(tree), exchanges


@pytest.fixture
def tree(rng):
    return {
        "statistics": [rng.normal(size=(REPLICAS, 3)).astype("float32"), None],
        "counts": (rng.integers(0, 9, size=(REPLICAS, 2, 2)).astype("int32"),),
        "loss": rng.normal(size=(REPLICAS,)).astype("float32"),
    }


def test_total_adds_every_array_of_a_tree(tree):
    summed, _ = on_replicas(total, tree)
    expected = jax.tree.map(lambda rows: rows.sum(axis=0), tree)
    assert jax.tree.structure(summed) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, summed, expected)


def test_total_takes_one_exchange_for_each_type_of_number(tree):
    assert on_replicas(total, tree)[1] == 2


def test_total_of_nothing_exchanges_nothing():
    assert on_replicas(lambda rows: total([None, *rows]), []) == ([None], 0)


@pytest.mark.parametrize(("bucket", "exchanges"), [(0, 3), (16, 2), (1 << 20, 1)])
def test_gradients_are_joined_in_buckets_and_others_go_with_them(rng, bucket, exchanges):
    gradients = [rng.normal(size=(REPLICAS, 2)).astype("float32") for _ in range(3)]
    others = {"loss": rng.normal(size=(REPLICAS,)).astype("float32"), "nothing": None}
    reduce = reducer("mean", bucket)
    (reduced, sums), counted = on_replicas(lambda both: reduce(*both), (gradients, others))
    assert counted == exchanges
    for ours, rows in zip(reduced, gradients, strict=True):
        np.testing.assert_allclose(ours, rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(sums["loss"], others["loss"].sum(), rtol=1e-6)
