import numpy as np
import pytest
from convoy import ipu


def test_every_replica_sends_to_every_other(on_four):
    parts = on_four(
        lambda x: ipu.all_to_all_op.all_to_all(10 * x + np.arange(4, dtype="float32"), 0, 0, 4)
    )
    assert parts[1] == [1, 11, 21, 31]
    with pytest.raises(
        ValueError, match=r"replication_factor=2 is not the number of replicas, 4\. Pass 4"
    ):
        on_four(lambda x: ipu.all_to_all_op.all_gather(x, 2))
