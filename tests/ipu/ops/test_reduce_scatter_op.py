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
    with pytest.raises(ValueError, match=r"received the shape \(2, 2\)\. Pass one axis"):
        scatter(np.zeros((2, 2)), 1)
