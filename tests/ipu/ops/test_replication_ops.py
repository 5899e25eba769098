from convoy import ipu


def test_each_replica_has_its_own_index(on_four):
    assert on_four(lambda index: index) == [0, 1, 2, 3]


def test_the_index_is_zero_outside_of_programs():
    assert ipu.replication_ops.replication_index() == 0
