import pytest
from convoy import ipu


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
    with pytest.raises(ValueError, match=r"replica_group_size=3\. Pass a number that divides 4"):
        on_four(lambda x: ops.cross_replica_sum(x, 3))
