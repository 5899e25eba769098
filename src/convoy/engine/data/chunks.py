"""From the user's data to chunks of batches on the devices.

Data that fits into the budget is moved once and indexed on the device (`resident.py`); the rest
is streamed in blocks, the next one moving while this one computes (`streamed.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from convoy.engine.data.device_put import put
from convoy.engine.random_state import RandomState
from convoy.engine.replica_axis import AXIS

Layout = Literal["ordered", "contiguous", "block"]


@dataclass(frozen=True)
class Chunk:
    """Some steps' worth of data on the devices.

    Attributes:
        layout: where a micro-batch is found: `"ordered"`, by an array of indices into whole
            arrays; `"contiguous"`, one after the other in whole arrays; `"block"`, in arrays
            whose first axis is the micro-batch.
        source: `(arrays, order, offset)`, or the block.
        batch: samples in a micro-batch, over all replicas.
        steps: steps, as the user counts them.
        parts: micro-batches in a step.
        sharded: whether a micro-batch is divided over the replicas, and several of them make a
            weight update; else it is run whole on every replica, and makes an update by itself.
    """

    layout: Layout
    source: Any
    batch: int
    steps: int
    parts: int = 1
    sharded: bool = True

    @property
    def micro_batches(self) -> int:
        return self.steps * self.parts


@dataclass(frozen=True)
class Cut:
    """How data is cut into steps.

    Attributes:
        replicas: how many divide each step.
        group: steps that come together or not at all: those of a weight update.
        parts: micro-batches that a step is divided into.
        keeps_rest: whether samples that do not fill a group are run, whole on every replica; else
            they are left out.
    """

    replicas: int
    group: int = 1
    parts: int = 1
    keeps_rest: bool = True

    def shards(self, samples: int) -> bool:
        """Say whether a step of so many samples divides over replicas and micro-batches."""
        return samples % (self.replicas * self.parts) == 0


@dataclass(frozen=True)
class Place:
    """Where in its data a feed is.

    Counted in samples of arrays, else in batches of the input: numbers that stay true on another
    number of replicas. The order follows from the random state that it was drawn from, so going
    to a place takes no reading of what comes before it.

    Attributes:
        order: the random state before the order was drawn.
        before: how much of that order earlier epochs have taken.
        done: how much this epoch has taken.
        state: what the input itself said about its state when the epoch began, if it can tell.
    """

    order: RandomState
    before: int
    done: int
    state: Any = None

    def to_json(self) -> dict[str, Any]:
        return {
            "order": self.order.to_json(),
            "before": self.before,
            "done": self.done,
            "state": self.state,
        }

    @classmethod
    def from_json(cls, place: dict[str, Any]) -> Place:
        return cls(
            RandomState.from_json(place["order"]), place["before"], place["done"], place["state"]
        )


class Feed(Protocol):
    """Hands out an epoch's data, a chunk at a time."""

    steps: int | None
    """Steps in an epoch, if that is known."""

    why_not_resumable: str | None
    """What stands in the way of an exact `seek`, if something does."""

    def begin_epoch(self) -> None: ...

    def make_repeatable(self) -> None:
        """Have the order of data depend on nothing but the random state, from the first epoch."""
        ...

    def place(self, *, epoch_over: bool) -> Place:
        """Return where the feed is, after all chunks that it handed out."""
        ...

    def seek(self, place: Place) -> int:
        """Begin an epoch at a place, and return how many of its steps are done.

        Raises:
            ValueError: if steps of this feed do not end there.
        """
        ...

    def example(self) -> Any:
        """Return the shapes and types of the batch that the epoch begins with, if there is one."""
        ...

    def next(self, limit: int) -> Chunk | None:
        """Return the next chunk, of at most `limit` steps; `None` when the epoch is over."""
        ...

    def prefetch(self, limit: int) -> None:
        """Start moving what the next call of `next` will return."""
        ...


class Placement:
    """Where data goes: one device, or a mesh whose replicas divide each micro-batch."""

    def __init__(self, mesh: jax.sharding.Mesh | None) -> None:
        self.mesh = mesh
        self.replicas = mesh.size if mesh else 1

    @property
    def spans_processes(self) -> bool:
        """Whether some of the devices are another process's."""
        return self.mesh is not None and self.mesh.is_multi_process

    @property
    def crosses_processes(self) -> bool:
        """Whether parts of one replica are in different processes."""
        return False

    def is_own(self, replica: int) -> bool:
        """Say whether a replica runs in this process."""
        if self.mesh is None:
            return True
        return self.mesh.devices.flat[replica].process_index == jax.process_index()

    @property
    def platform(self) -> str:
        device = self.mesh.devices.flat[0] if self.mesh else jax.devices()[0]
        return device.platform

    def everywhere(self, tree: Any) -> Any:
        return self._put(tree, jax.sharding.PartitionSpec())

    def divided(self, block: Any) -> Any:
        return self._put(block, jax.sharding.PartitionSpec(None, AXIS))

    def _put(self, tree: Any, spec: jax.sharding.PartitionSpec) -> Any:
        sharding = None if self.mesh is None else jax.sharding.NamedSharding(self.mesh, spec)
        return put(tree, sharding)


class Budget:
    """Memory that data may take on each device."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def reserve(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


def steps_until(units: int, per_step: int, end: int, group: int) -> int:
    """Return how many steps take so much data.

    Args:
        units: samples or batches.
        per_step: how many of them a step takes.
        end: how many there are; the last step may be a smaller one.
        group: steps that come together or not at all.

    Raises:
        ValueError: if no step ends there.
    """
    whole, rest = divmod(units, per_step)
    steps = whole + 1 if rest and units == end else whole
    if (rest and units != end) or (not rest and steps % group):
        raise ValueError(
            f"The checkpoint was taken {units} into the data, but a weight update now takes "
            f"{per_step * group} and none ends there. Resume with a batch size, devices and "
            f"accumulation whose product divides {units}."
        )
    return steps


def size(tree: Any) -> int:
    """Return the bytes that a structure of arrays takes on a device."""
    return sum(
        leaf.size * jax.dtypes.canonicalize_dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def shapes(batch: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch)


def local_batch_shapes(chunk: Chunk, replicas: int) -> Any:
    """Return the shapes and types of what `fetcher`'s function finds."""
    share, is_block = chunk.batch // replicas, chunk.layout == "block"
    arrays = chunk.source if is_block else chunk.source[0]
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((share, *leaf.shape[1 + is_block :]), leaf.dtype), arrays
    )


def fetcher(chunk: Chunk, replicas: int, *, in_one_program: bool = True) -> Callable[..., Any]:
    """Return the function that finds a micro-batch (a replica's share of it) in a source.

    Args:
        chunk: some steps' worth of data.
        replicas: how many divide a micro-batch.
        in_one_program: whether all replicas run one program, which knows the replica; else the
            function takes its number as a third argument.
    """
    share = chunk.batch // replicas

    def share_offset(replica: Any) -> Any:
        if replicas == 1:
            return 0
        return (jax.lax.axis_index(AXIS) if in_one_program else replica[0]) * share

    def ordered(source: Any, index: jax.Array, *replica: jax.Array) -> Any:
        arrays, order, offset = source
        start = offset + index * chunk.batch + share_offset(replica)
        indices = jax.lax.dynamic_slice_in_dim(order, start, share)
        return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="promise_in_bounds"), arrays)

    def contiguous(source: Any, index: jax.Array, *replica: jax.Array) -> Any:
        arrays, _, offset = source
        start = offset + index * chunk.batch + share_offset(replica)
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, share), arrays)

    def block(source: Any, index: jax.Array, *_: jax.Array) -> Any:
        return jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), source
        )

    fetch = {"ordered": ordered, "contiguous": contiguous, "block": block}[chunk.layout]

    def apart(*arguments: Any) -> Any:
        def nothing(*arguments: Any) -> Any:
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(fetch, *arguments))

        return jax.lax.cond(arguments[1] >= 0, fetch, nothing, *arguments)

    def chosen(source: Any, index: Any, *replica: jax.Array) -> Any:
        # XLA would merge the way to a block's data with what is computed from it, and round in
        # another way than it does for data that lies on the device. On a CPU it does not look into
        # branches, which take a microsecond.
        arguments = source, jnp.asarray(index), *replica
        return jax.lax.platform_dependent(*arguments, cpu=apart, default=fetch)

    return chosen if chunk.layout == "block" else fetch
