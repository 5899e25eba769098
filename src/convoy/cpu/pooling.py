"""Which windowed reductions are a pooling over neighbouring axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

AXES = 3


@dataclass(frozen=True)
class Window:
    """A window as JAX describes it, with one entry for every axis of the operand."""

    sizes: Sequence[int]
    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    dilation: Sequence[int]

    def moves_along(self, axis: int) -> bool:
        """Whether the reduction does anything along an axis."""
        return (self.sizes[axis], self.strides[axis], *self.padding[axis]) != (1, 1, 0, 0)


@dataclass(frozen=True)
class Pooling:
    """A pooling over the middle of (outer, depth, height, width, inner); see `native/pooling.h`."""

    outer: int
    inner: int
    size: tuple[int, ...]
    pooled: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]

    def description(self) -> list[int]:
        numbers = [self.outer, self.inner]
        for field in (self.size, self.pooled, self.window, self.stride, self.dilation):
            numbers += field
        return [*numbers, *self.padding]


def recognise(shape: Sequence[int], pooled: Sequence[int], window: Window) -> Pooling | None:
    """Express a window over an operand of `shape` as a pooling, if it is one."""
    moving = [axis for axis in range(len(shape)) if window.moves_along(axis)]
    if not moving or 0 in (*shape, *pooled):
        return None
    first, end = moving[0], moving[-1] + 1
    if end - first > AXES:
        return None
    middle = slice(first, end)
    missing = AXES - (end - first)

    def three(values: Sequence[int], absent: int = 1) -> tuple[int, ...]:
        return (absent,) * missing + tuple(values[middle])

    return Pooling(
        outer=prod(shape[:first]),
        inner=prod(shape[end:]),
        size=three(shape),
        pooled=three(pooled),
        window=three(window.sizes),
        stride=three(window.strides),
        dilation=three(window.dilation),
        padding=three([low for low, _ in window.padding], absent=0),
    )
