"""Queues of results that a program passes to the host."""

from collections.abc import Iterator
from enum import Enum

import jax
import jax.numpy as jnp
import numpy as np
from convoy.arguments import whole_number
from convoy.ipu import checks, notice, program
from convoy.types import PyTree

DEFAULT_DEPTH = 3


class IPUOutfeedMode(Enum):
    """Results that a queue keeps: all of them, or the last."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue:
    """Collects the results of a program, for the host to read after it ran.

    Args:
        outfeed_mode: `IPUOutfeedMode.ALL`, the default, or `LAST`.
        device_ordinal: index of the logical device; that of the program is used.
        buffer_depth: 1 or more; no effect.
        optimise_latency: no effect.

    Raises:
        ValueError: if the mode is unknown, or a number is out of range.
    """

    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | str | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int = DEFAULT_DEPTH,
        optimise_latency: bool = False,
    ) -> None:
        self.mode = IPUOutfeedMode(outfeed_mode or IPUOutfeedMode.ALL)
        checks.in_range("device_ordinal", device_ordinal, 0)
        whole_number("buffer_depth", buffer_depth, "a positive whole number")
        notice.no_effect("IPUOutfeedQueue", {"buffer_depth": buffer_depth != DEFAULT_DEPTH})
        self._values: list[PyTree] = []
        self.enqueued = False

    def enqueue(self, tensors: PyTree) -> None:
        """Add an array, or a tuple or dict of arrays. Call it inside a program, once in each."""
        tape = program.tape()
        if tape is None:
            raise ValueError("enqueue() was called outside of a program. Call it inside of one.")
        self.enqueued = True
        tape.put(self, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tensors))

    def put(self, values: PyTree) -> None:
        """Add results along the first axis; with several replicas, the second axis counts those."""
        self._values.append(values)

    def dequeue(self, wait_for_completion: bool = False) -> PyTree:
        """Return the results since the last call, along a first axis; or the last result.

        With several replicas, the next axis counts those.

        Raises:
            ValueError: if the queue was never used.
        """
        if not self.enqueued:
            raise ValueError("Nothing was put into the outfeed queue. Call enqueue() in a program.")
        values, self._values = self._values, []
        if not values:
            return []
        if self.mode is IPUOutfeedMode.LAST:
            return jax.tree.map(lambda leaf: leaf[-1], values[-1])
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *values)

    def __iter__(self) -> Iterator[PyTree]:
        if self.mode is not IPUOutfeedMode.ALL:
            raise RuntimeError("This outfeed queue keeps only the LAST result. Call dequeue().")
        values = self.dequeue()
        leaves, structure = jax.tree.flatten(values)
        count = len(leaves[0]) if leaves else 0
        return iter(
            [jax.tree.unflatten(structure, [leaf[i] for leaf in leaves]) for i in range(count)]
        )

    @property
    def deleter(self) -> None:
        """`None`: the queue is deleted as any Python object."""


ScopedIPUOutfeedQueue = IPUOutfeedQueue
