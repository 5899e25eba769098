"""Data that a program takes from the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import jax
import numpy as np
from convoy.ipu import notice

DEFAULT_DEPTH = 3


class IPUInfeedQueue:
    """Hands the elements of a data set to a loop, one for each iteration and replica.

    Args:
        dataset: yields arrays, tuples or dicts of them, all of the same shapes.
        device_ordinal: of the logical device; the program's is used.
        prefetch_depth: from 1 to 255; checked, but without effect.
        optimise_latency: has no effect.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        device_ordinal: int | None = None,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
    ) -> None:
        del optimise_latency
        if device_ordinal is not None and (type(device_ordinal) is not int or device_ordinal < 0):
            raise ValueError(f"device_ordinal={device_ordinal!r} is not a number from 0.")
        self.prefetch_depth = prefetch_depth or DEFAULT_DEPTH
        if not 1 <= self.prefetch_depth <= 255:
            raise ValueError(f"prefetch_depth={prefetch_depth} is not from 1 to 255.")
        if prefetch_depth not in (None, 0, DEFAULT_DEPTH):
            notice.without_effect(["prefetch_depth"], "IPUInfeedQueue")
        self._dataset = dataset
        self._rest: Iterator[Any] | None = None
        self._ahead: list[Any] = []
        self._read = 0
        self.dequeued = False

    @property
    def initializer(self) -> None:
        """Nothing: the queue is ready."""

    @property
    def deleter(self) -> None:
        """Nothing: the queue goes with the last that knows it."""

    @property
    def number_of_tuple_elements(self) -> int:
        """How many arrays an element has."""
        return len(jax.tree.leaves(self.shapes()))

    def get_next(self) -> NoReturn:
        raise ValueError("get_next() is gone. Pass the queue to loops.repeat().")

    def shapes(self) -> Any:
        """Return the shapes and types of an element."""
        if not self._ahead:
            self._ahead.append(self._next())
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)
            ),
            self._ahead[0],
        )

    def take(self, count: int) -> Any:
        """Return the next elements, along a new first axis."""
        self.dequeued = True
        elements = self._ahead[:count]
        del self._ahead[:count]
        elements += [self._next() for _ in range(count - len(elements))]
        first = jax.tree.map(np.shape, elements[0])
        for element in elements:
            if jax.tree.map(np.shape, element) != first:
                raise ValueError(
                    "The elements of the data set differ in shape. Leave out its last, incomplete "
                    "batch."
                )
        return jax.tree.map(lambda *leaves: np.stack(leaves), *elements)

    def _next(self) -> Any:
        if self._rest is None:
            numpy = getattr(self._dataset, "as_numpy_iterator", None)
            self._rest = iter(numpy() if numpy else self._dataset)
        try:
            element = next(self._rest)
        except StopIteration:
            raise RuntimeError(
                f"The data set ended after {self._read} elements, but the program needs more. "
                "Repeat it."
            ) from None
        self._read += 1
        return jax.tree.map(np.asarray, element)
