"""Queues of data that a program takes from the host."""

from collections.abc import Iterable, Iterator
from typing import NoReturn

import jax
import numpy as np
from convoy.estimator.input import iterate
from convoy.ipu import checks, notice
from convoy.types import PyTree, Shapes

DEFAULT_DEPTH = 3


class IPUInfeedQueue:
    """Passes the elements of a dataset to a loop, one for each iteration and replica.

    Args:
        dataset: an iterable of arrays, or of tuples or dicts of arrays, all of the same shapes.
        device_ordinal: index of the logical device; that of the program is used.
        prefetch_depth: from 1 to 255; no effect.
        optimise_latency: no effect.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        dataset: Iterable[PyTree],
        device_ordinal: int | None = None,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
    ) -> None:
        checks.in_range("device_ordinal", device_ordinal, 0)
        self.prefetch_depth = prefetch_depth or DEFAULT_DEPTH
        checks.in_range("prefetch_depth", self.prefetch_depth, 1, 255)
        is_changed = self.prefetch_depth != DEFAULT_DEPTH
        notice.no_effect("IPUInfeedQueue", {"prefetch_depth": is_changed})
        self._dataset = dataset
        self._iterator: Iterator[PyTree] | None = None
        self._ahead: list[PyTree] = []
        self._shapes: Shapes = None
        self._read = 0
        self.dequeued = False

    @property
    def initializer(self) -> None:
        """`None`: the queue is always ready."""

    @property
    def deleter(self) -> None:
        """`None`: the queue is deleted as any Python object."""

    @property
    def number_of_tuple_elements(self) -> int:
        """Number of arrays of an element."""
        return len(jax.tree.leaves(self.shapes()))

    def get_next(self) -> NoReturn:
        raise ValueError("get_next() was removed. Pass the queue to loops.repeat().")

    def shapes(self) -> Shapes:
        """Return the shapes and dtypes of an element."""
        if self._shapes is None:
            self._ahead.append(self._next())
        return self._shapes

    def take(self, count: int) -> PyTree:
        """Return the next elements, along a new first axis."""
        self.dequeued = True
        elements = self._ahead[:count]
        del self._ahead[:count]
        elements += [self._next() for _ in range(count - len(elements))]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *elements)

    def _next(self) -> PyTree:
        if self._iterator is None:
            self._iterator = iterate(self._dataset)
        try:
            element = jax.tree.map(np.asarray, next(self._iterator))
        except StopIteration:
            raise RuntimeError(f"The data ended after {self._read} elements. Repeat it.") from None
        self._read += 1
        if self._shapes is None:
            self._shapes = jax.tree.map(_shape, element)
        checks.equal_shapes(*(jax.tree.map(np.shape, tree) for tree in (element, self._shapes)))
        return element


def _shape(array: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))
