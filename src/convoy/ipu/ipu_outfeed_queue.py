"""Results that a program hands to the host."""

from __future__ import annotations

from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from convoy.ipu import notice, program


class IPUOutfeedMode(Enum):
    """Whether all results are kept, or the last."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue:
    """Collects what a program puts in, for the host to take out after it ran.

    Args:
        outfeed_mode: `IPUOutfeedMode.ALL`, which is the default, or `LAST`.
        device_ordinal: of the logical device; the program's is used.
        buffer_depth: 1 or more; checked, but without effect.
        optimise_latency: has no effect.

    Raises:
        ValueError: if the mode is unknown or a number out of range.
    """

    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | str | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int = 3,
        optimise_latency: bool = False,
    ) -> None:
        del optimise_latency
        self.mode = IPUOutfeedMode(outfeed_mode or IPUOutfeedMode.ALL)
        if device_ordinal is not None and (type(device_ordinal) is not int or device_ordinal < 0):
            raise ValueError(f"device_ordinal={device_ordinal!r} is not a number from 0.")
        if buffer_depth < 1:
            raise ValueError(f"buffer_depth={buffer_depth} is not 1 or more.")
        if buffer_depth != 3:
            notice.without_effect(["buffer_depth"], "IPUOutfeedQueue")
        self._values: list[Any] = []
        self.enqueued = False

    def enqueue(self, tensors: Any) -> None:
        """Hand over an array, or a tuple or dict of arrays, in a program; once in each."""
        tape = program.tape()
        if tape is None:
            raise ValueError(
                "enqueue() was called outside of a program. Call it in a function that "
                "ipu_compiler.compile or loops.repeat runs."
            )
        self.enqueued = True
        tape.put(self, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tensors))

    def put(self, values: Any) -> None:
        """Add results: the first axis counts them, the second, if there are several, replicas."""
        self._values.append(values)

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Return what was put in since the last time, along a first axis; or the last of it.

        With several replicas, these are the next axis.

        Raises:
            ValueError: if nothing was ever put in.
        """
        del wait_for_completion
        if not self.enqueued:
            raise ValueError("Nothing was put into the outfeed queue. Call enqueue() in a program.")
        values, self._values = self._values, []
        if not values:
            return []
        if self.mode is IPUOutfeedMode.LAST:
            return jax.tree.map(lambda leaf: leaf[-1], values[-1])
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *values)

    def __iter__(self) -> Any:
        if self.mode is not IPUOutfeedMode.ALL:
            raise RuntimeError("Only an outfeed queue that keeps ALL results can be iterated over.")
        values = self.dequeue()
        leaves, structure = jax.tree.flatten(values)
        count = len(leaves[0]) if leaves else 0
        return iter(
            [jax.tree.unflatten(structure, [leaf[i] for leaf in leaves]) for i in range(count)]
        )

    @property
    def deleter(self) -> None:
        """Nothing: the queue goes with the last that knows it."""


ScopedIPUOutfeedQueue = IPUOutfeedQueue
