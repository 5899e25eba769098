"""Operations over the processes of a run, outside of any program."""

from __future__ import annotations

from typing import Any

import numpy as np
from convoy import distributed
from convoy.ipu.enums import ReduceOp


def allgather(value: Any, tensor_name: str | None = None) -> np.ndarray:
    """Return the values of all processes, along a new first axis."""
    del tensor_name
    return distributed.gathered(np.asarray(value))


def allreduce(value: Any, reduce_op: Any, tensor_name: str | None = None) -> np.ndarray:
    """Return the sum or the mean of the values of all distributed.

    Args:
        value: of this process; all must pass such shapes and types.
        reduce_op: `"SUM"` or `"MEAN"`, or TensorFlow's word for it.
        tensor_name: has no effect.

    Raises:
        ValueError: if the operation is another one.
    """
    del tensor_name
    operation = ReduceOp.parse(reduce_op)
    rows = distributed.gathered(np.asarray(value))
    return rows.sum(axis=0) if operation is ReduceOp.SUM else rows.mean(axis=0)


def broadcast(value: Any, root_rank: int = 0, tensor_name: str | None = None) -> np.ndarray:
    """Return the value of the first process, whatever `root_rank` says."""
    del root_rank, tensor_name
    (array,) = distributed.arrays_from_first([np.asarray(value)])
    return array
