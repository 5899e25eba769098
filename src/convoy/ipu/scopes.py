"""Blocks that say where something runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

import convoy
from convoy.ipu import notice, system

_shards: ContextVar[set[int] | None] = ContextVar("convoy_ipu_shards", default=None)
_device: ContextVar[str | None] = ContextVar("convoy_ipu_device", default=None)


@contextlib.contextmanager
def ipu_scope(device: str = "/device:IPU:0") -> Iterator[None]:
    """Have `ipu_compiler.compile` in the block use a logical device."""
    system.devices_of(device)
    token = _device.set(device)
    try:
        yield
    finally:
        _device.reset(token)


def current_device() -> str:
    """Return the logical device of the block, else the first."""
    return _device.get() or "/device:IPU:0"


@contextlib.contextmanager
def ipu_jit_scope(ipu_scope: str) -> Iterator[None]:
    """Do nothing: what is compiled is compiled whole."""
    del ipu_scope
    yield


@contextlib.contextmanager
def ipu_shard(index: int | Iterable[int]) -> Iterator[None]:
    """Put layers that a model function makes or calls in the block on a device of their own.

    An `IPUEstimator` with so many `num_shards` then runs the network by these shards, one after
    the other. What is in no block goes where its inputs are. Programs of plain functions run on
    one device for each replica; there the block has no effect.

    Args:
        index: the number of the device, from 0. Several for one operation have no effect.

    Raises:
        ValueError: if the number is negative.
        RuntimeError: inside of another such block.
    """
    if not isinstance(index, int):
        numbers = list(index)
        if len(numbers) != 1:
            notice.without_effect([f"ipu_shard({numbers})"], "scopes")
            yield
            return
        index = numbers[0]
    found = _shards.get()
    if found is None:
        if index:
            notice.without_effect([f"ipu_shard({index})"], "scopes")
        yield
        return
    found.add(index)
    with convoy.PipelineStage(index):
        yield


@contextlib.contextmanager
def notice_shards() -> Iterator[set[int]]:
    """Note the numbers of the `ipu_shard` blocks that a model function has."""
    found: set[int] = set()
    token = _shards.set(found)
    try:
        yield found
    finally:
        _shards.reset(token)


@contextlib.contextmanager
def stochastic_rounding(override: bool) -> Iterator[None]:
    """Accept Graphcore's block; rounding is chosen for a whole model by the configuration."""
    if override:
        notice.without_effect(["stochastic_rounding"], "scopes")
    yield


@contextlib.contextmanager
def partials_type(override: Any) -> Iterator[None]:
    """Accept Graphcore's block; products are summed in float32.

    Raises:
        ValueError: if the type is neither float16 nor float32.
    """
    word = getattr(override, "name", None) or getattr(override, "__name__", override)
    if word not in ("float16", "float32"):
        raise ValueError(f"partials_type({override!r}): pass 'float16' or 'float32'.")
    if word == "float16":
        notice.without_effect(["partials_type"], "scopes")
    yield


@contextlib.contextmanager
def frontend_attribute(
    attribute_name: str, attribute_value: str, restore_to: str | None = None
) -> Iterator[None]:
    """Accept Graphcore's block, which tells its compiler something."""
    del attribute_value, restore_to
    notice.without_effect([f"frontend_attribute({attribute_name!r})"], "scopes")
    yield


def outside_compilation_scope(name: str = "outside") -> NoReturn:
    """Say what to use instead: a compiled program calls the host by a function."""
    raise NotImplementedError(
        f"outside_compilation_scope({name!r}): use jax.pure_callback, or an IPUOutfeedQueue."
    )
