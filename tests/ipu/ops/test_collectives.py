import keras
from convoy import ipu
from convoy.ipu.ops import collectives


def test_one_replica_has_the_answer_itself():
    assert ipu.cross_replica_ops.cross_replica_mean(3.0) == 3
    assert ipu.replication_ops.replication_index() == 0
    assert ipu.all_to_all_op.all_to_all(3.0, 0, 0, 1) == 3


def test_collects_the_operations_on_symbolic_tensors():
    tensor = keras.Input((2,))
    with collectives.collect_symbolic_calls() as calls:
        ipu.cross_replica_ops.cross_replica_mean(3.0)
        assert calls == []
        assert ipu.cross_replica_ops.cross_replica_sum(tensor).shape == (None, 2)
    assert calls == ["cross_replica_sum"]
