import numpy as np
import pytest
from convoy import ipu


@pytest.fixture
def on_four(configure):
    """Run a function of each replica's number on four; return what every replica got."""
    configure(4)

    def run(function):
        gather = ipu.all_to_all_op.all_gather
        index = ipu.replication_ops.replication_index
        (found,) = ipu.ipu_compiler.compile(
            lambda: gather(function(index().astype("float32")), replication_factor=4)
        )
        return found.tolist()

    return run


def test_sums_and_means(on_four):
    ops = ipu.cross_replica_ops
    assert on_four(ops.cross_replica_sum) == [6] * 4
    assert on_four(ops.cross_replica_mean) == [1.5] * 4
    assert on_four(lambda x: ops.cross_replica_sum(x, 2)) == [1, 1, 5, 5]
    assert on_four(lambda x: ops.cross_replica_mean(x, replica_group_size=2)) == [
        0.5,
        0.5,
        2.5,
        2.5,
    ]
    assert on_four(ops.assume_equal_across_replicas) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="Groups of 3 do not divide 4 replicas"):
        on_four(lambda x: ops.cross_replica_sum(x, 3))


def test_every_replica_sends_to_every_other(on_four):
    parts = on_four(
        lambda x: ipu.all_to_all_op.all_to_all(10 * x + np.arange(4, dtype="float32"), 0, 0, 4)
    )
    assert parts[1] == [1, 11, 21, 31]
    with pytest.raises(ValueError, match="replication_factor=2, but the program runs on 4"):
        on_four(lambda x: ipu.all_to_all_op.all_gather(x, 2))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("COLLECTIVE_OP_ADD", [[6, 10], [14, 18], [22, 0], [0, 0]]),
        ("COLLECTIVE_OP_MAX", [[3, 4], [5, 6], [7, 0], [0, 0]]),
        ("COLLECTIVE_OP_MEAN", [[1.5, 2.5], [3.5, 4.5], [5.5, 0], [0, 0]]),
        ("COLLECTIVE_OP_LOCAL", [[0, 1], [3, 4], [6, 0], [0, 0]]),
    ],
)
def test_every_replica_keeps_its_share_of_a_reduction(on_four, operation, expected):
    scatter = ipu.reduce_scatter_op.reduce_scatter
    found = on_four(lambda x: scatter(x + np.arange(5, dtype="float32"), 4, op=operation))
    assert found == expected


def test_refuses_reductions_that_are_none():
    scatter = ipu.reduce_scatter_op.reduce_scatter
    with pytest.raises(ValueError, match="op='COLLECTIVE_OP_XOR' is unknown"):
        scatter(np.zeros(2), 1, "COLLECTIVE_OP_XOR")
    with pytest.raises(ValueError, match=r"one axis, but received \(2, 2\)"):
        scatter(np.zeros((2, 2)), 1)


def test_one_replica_has_the_answer_itself():
    assert ipu.cross_replica_ops.cross_replica_mean(3.0) == 3
    assert ipu.replication_ops.replication_index() == 0
    assert ipu.all_to_all_op.all_to_all(3.0, 0, 0, 1) == 3


def test_dropout_keeps_the_mean():
    x = np.ones(10000, "float32")
    dropped = np.asarray(ipu.rand_ops.dropout(x, 0.25, seed=1))
    assert set(np.unique(dropped)) == {0, np.float32(1 / 0.75)}
    assert dropped.mean() == pytest.approx(1, abs=0.05)
    assert ipu.rand_ops.dropout(x, 0) is x
    with pytest.raises(ValueError, match="rate=1 is not"):
        ipu.rand_ops.dropout(x, 1)
