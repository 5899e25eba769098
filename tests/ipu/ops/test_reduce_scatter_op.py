import numpy as np
import pytest
from convoy import ipu


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("MUL", [[0, 2], [0, 0]]),
        ("MIN", [[0, 1], [0, 0]]),
        ("LOGICAL_AND", [[0, 1], [0, 0]]),
        ("LOGICAL_OR", [[1, 1], [0, 0]]),
        ("SQUARE_ADD", [[1, 5], [0, 0]]),
    ],
)
def test_two_replicas_reduce_their_numbers(configure, operation, expected):
    """The first has 0, 1 and 0, the second 1, 2 and 0."""
    configure(2)

    def share():
        own = ipu.replication_ops.replication_index().astype("float32")
        x = np.array([0, 1, 0], "float32") + own * np.array([1, 1, 0], "float32")
        kept = ipu.reduce_scatter_op.reduce_scatter(x, 2, f"COLLECTIVE_OP_{operation}")
        return ipu.all_to_all_op.all_gather(kept, 2)

    (found,) = ipu.ipu_compiler.compile(share)
    assert found.tolist() == expected
