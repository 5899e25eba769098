"""Context managers that select devices, and others that have no effect."""

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import NoReturn

import convoy
from convoy.context import bound
from convoy.ipu import config, notice

_shards: ContextVar[set[int] | None] = ContextVar("convoy_ipu_shards", default=None)
_device: ContextVar[str] = ContextVar("convoy_ipu_device", default="/device:IPU:0")


@contextlib.contextmanager
def ipu_scope(device: str = "/device:IPU:0") -> Iterator[None]:
    """Run programs that `ipu_compiler.compile` compiles in the block on a logical device."""
    config.devices_of(device)
    with bound(_device, device):
        yield


def current_device() -> str:
    """Return the logical device of the innermost `ipu_scope`, else the first one."""
    return _device.get()


@contextlib.contextmanager
def ipu_jit_scope(ipu_scope: str) -> Iterator[None]:
    """Do nothing: a program is always compiled as a whole."""
    yield


@contextlib.contextmanager
def ipu_shard(index: int | Iterable[int]) -> Iterator[None]:
    """Put layers that a model function makes or calls in the block on their own device.

    An `IPUEstimator` with that many `num_shards` then runs the network shard by shard. Layers
    outside of such a block join the shard of their inputs. Programs of plain functions run on one
    device per replica; there the block has no effect.

    Args:
        index: index of the device, from 0. Several indices have no effect.

    Raises:
        ValueError: if the index is negative.
        RuntimeError: inside another such block.
    """
    indices = [index] if isinstance(index, int) else list(index)
    found = _shards.get()
    if len(indices) != 1 or found is None:
        shown = indices[0] if len(indices) == 1 else indices
        notice.no_effect("scopes", {f"ipu_shard({shown})": shown})
        yield
        return
    found.update(indices)
    with convoy.PipelineStage(indices[0]):
        yield


def collect_shards() -> contextlib.AbstractContextManager[set[int] | None]:
    """Collect the indices of the `ipu_shard` blocks of a model function."""
    return bound(_shards, set())


@contextlib.contextmanager
def stochastic_rounding(override: bool) -> Iterator[None]:
    """Do nothing: rounding is configured for a whole model."""
    notice.no_effect("scopes", {"stochastic_rounding": override})
    yield


@contextlib.contextmanager
def partials_type(override: object) -> Iterator[None]:
    """Do nothing: products are accumulated in float32.

    Raises:
        ValueError: if the type is neither float16 nor float32.
    """
    word = getattr(override, "name", None) or getattr(override, "__name__", override)
    if word not in ("float16", "float32"):
        raise ValueError(f"partials_type() received {override!r}. Pass 'float16' or 'float32'.")
    notice.no_effect("scopes", {"partials_type": word == "float16"})
    yield


@contextlib.contextmanager
def frontend_attribute(
    attribute_name: str, attribute_value: str, restore_to: str | None = None
) -> Iterator[None]:
    """Do nothing: the attributes are for Graphcore's compiler."""
    notice.no_effect("scopes", {f"frontend_attribute({attribute_name!r})": True})
    yield


def outside_compilation_scope(name: str = "outside") -> NoReturn:
    """Raise an error that names the replacement: callbacks from a compiled program."""
    raise NotImplementedError("Use jax.pure_callback or an IPUOutfeedQueue instead.")
