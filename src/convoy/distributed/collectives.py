"""Exchange of host values between the processes of a run."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from convoy.distributed.process import count, index
from jax.experimental import multihost_utils

Json = Any  # a value that JSON can hold


def from_first(value: Json) -> Json:
    """Return the value of the first process."""
    return from_all(value)[0]


def arrays_from(process: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays of one process; all processes must pass the same shapes and types."""
    if count() == 1 or not arrays:
        return list(arrays)
    # As bytes: JAX broadcasts by adding zeros, which turns -0.0 into 0.0.
    own = np.concatenate([np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays])
    sent = multihost_utils.broadcast_one_to_all(own, is_source=index() == process)
    found, start = [], 0
    for array in arrays:
        end = start + array.nbytes
        found.append(sent[start:end].copy().view(array.dtype).reshape(array.shape))
        start = end
    return found


def arrays_from_first(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays of the first process; all must pass the same shapes and types."""
    return arrays_from(0, arrays)


def who_has(flags: list[bool]) -> list[list[int]]:
    """Return for each flag the indices of the processes in which it is set."""
    rows = _gather(np.array(flags, bool).reshape(-1))
    return [[process for process, flag in enumerate(column) if flag] for column in rows.T]


def from_all(value: Json) -> list[Json]:
    """Return the values of all processes, in the order of the processes."""
    if count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = _gather(np.int32(len(text)))
    rows = _gather(np.pad(text, (0, lengths.max() - len(text))))
    return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def any_of(flags: list[bool]) -> list[bool]:
    """Return for each flag whether it is set in any process."""
    return [bool(processes) for processes in who_has(flags)]


def totals(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the sum of each array over all processes."""
    return [rows.sum(axis=0, dtype=rows.dtype) for rows in _gather(list(arrays))]


def gathered(array: np.ndarray) -> np.ndarray:
    """Return the arrays of all processes, stacked; all must pass the same shape and type."""
    # As bytes: JAX would narrow 64 bits to 32.
    rows = _gather(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return rows.view(array.dtype).reshape(-1, *array.shape)


def check_same(what: str, described: dict[str, Json]) -> None:
    """Check that all processes have the same settings.

    Args:
        what: name of the settings, for the error message.
        described: settings by name.

    Raises:
        RuntimeError: in every process, with the first difference.
    """
    first, *others = from_all(described)
    for number, other in enumerate(others, start=1):
        for name in first | other:
            if first.get(name) != other.get(name):
                raise RuntimeError(
                    f"Process {number} has another {what} than process 0: {name} is "
                    f"{other.get(name)!r} in process {number} and {first.get(name)!r} in process "
                    "0. Run the same script with the same flags and versions in all processes."
                )


def wait_for_all(what: str) -> None:
    """Wait until all processes have reached this point."""
    if count() > 1:
        multihost_utils.sync_global_devices(what)


def _gather(tree: Any) -> Any:
    """Return the arrays of all processes, stacked."""
    if count() == 1:
        return jax.tree.map(lambda array: np.asarray(array)[None], tree)
    return jax.tree.map(np.asarray, multihost_utils.process_allgather(tree))
