"""Collectives over the processes of a run, outside of programs."""

import numpy as np
from convoy import distributed
from convoy.ipu.enums import ReduceOp
from convoy.types import PyTree


def allgather(value: PyTree, tensor_name: str | None = None) -> np.ndarray:
    """Return the values of all processes, along a new first axis."""
    return distributed.gathered(np.asarray(value))


def allreduce(value: PyTree, reduce_op: object, tensor_name: str | None = None) -> np.ndarray:
    """Return the sum or the mean of the values of all processes.

    Args:
        value: the value of this process; shapes and dtypes must be the same in all.
        reduce_op: `"SUM"` or `"MEAN"`, or TensorFlow's member for it.
        tensor_name: no effect.

    Raises:
        ValueError: if the operation is another one.
    """
    operation = ReduceOp.parse(reduce_op)
    rows = distributed.gathered(np.asarray(value))
    return rows.sum(axis=0) if operation is ReduceOp.SUM else rows.mean(axis=0)


def broadcast(value: PyTree, root_rank: int = 0, tensor_name: str | None = None) -> np.ndarray:
    """Return the value of the first process. `root_rank` is ignored, as upstream."""
    (array,) = distributed.arrays_from_first([np.asarray(value)])
    return array
