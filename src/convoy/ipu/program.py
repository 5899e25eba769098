"""Functions of arrays that run on all replicas as one program, with queues to and from the host.

A program is traced twice: first to find the data that it takes from queues, then with that data as
arguments. A function that calls a pipeline runs on the host instead, since a pipeline consists of
many programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from convoy.context import bound
from convoy.engine.data.placement import AXIS, REPLICATED, SHARDED
from convoy.engine.step.all_reduce import Reduction, trace_for_replicas
from convoy.engine.step.replicate import over_replicas
from convoy.types import PyTree

if TYPE_CHECKING:
    from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue
    from convoy.ipu.ipu_outfeed_queue import IPUOutfeedQueue


@dataclass
class Tape:
    """The data that a program takes from queues and puts into them, while it is traced.

    Attributes:
        given: the data of each loop over an infeed, in order; `None` in the first trace.
        taken: each infeed, and the number of elements taken from it.
        puts: each outfeed, and the values put into it along a first axis, by its identity.
    """

    given: list[PyTree] | None = None
    taken: list[tuple[IPUInfeedQueue, int]] = field(default_factory=list)
    puts: dict[int, tuple[IPUOutfeedQueue, PyTree]] = field(default_factory=dict)

    def data(self, infeed: IPUInfeedQueue, count: int) -> PyTree:
        """Return the next elements of an infeed, for this replica."""
        number = len(self.taken)
        self.taken.append((infeed, count))
        if self.given is not None:
            return jax.tree.map(lambda leaf: leaf[:, 0], self.given[number])
        return jax.tree.map(
            lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), infeed.shapes()
        )

    def put(self, outfeed: IPUOutfeedQueue, values: PyTree) -> None:
        """Record the values that go into an outfeed.

        Raises:
            ValueError: if the program used the outfeed before.
        """
        if id(outfeed) in self.puts:
            raise ValueError("A program uses an outfeed queue twice. Make a queue for each use.")
        self.puts[id(outfeed)] = outfeed, values


@dataclass
class Host:
    """A function that is called on the host, since it calls pipelines.

    Attributes:
        origin: the user's function.
        devices: devices of the program.
        reduction: reduction of gradients over replicas, if a strategy runs it.
        pipelines: number of pipelines that it has called so far.
    """

    origin: Callable[..., PyTree]
    devices: Sequence[jax.Device]
    reduction: Reduction | None
    pipelines: int = 0


class NeedsHostError(Exception):
    """Raised when a traced function calls a pipeline."""


_tape: ContextVar[Tape | None] = ContextVar("convoy_ipu_tape", default=None)
_host: ContextVar[Host | None] = ContextVar("convoy_ipu_host", default=None)


def tape() -> Tape | None:
    """Return the tape of the program that is being traced, if there is one."""
    return _tape.get()


def host() -> Host | None:
    """Return the function that is being called on the host, if there is one."""
    return _host.get()


def run(
    function: Callable[..., PyTree],
    inputs: Sequence[PyTree] | None,
    devices: Sequence[jax.Device],
    origin: Callable[..., PyTree] | None = None,
    reduction: Reduction | None = None,
) -> PyTree:
    """Run a function on every device; or on the host, if it calls pipelines.

    Args:
        function: a function of arrays.
        inputs: its arguments.
        devices: one device per replica.
        origin: the user's function, if it is another one.
        reduction: reduction of gradients over the replicas of pipelines; by default that of the
            current strategy.

    Returns:
        The result on the first device.
    """
    try:
        return _run(function, inputs, devices)
    except NeedsHostError:
        pass
    with bound(_host, Host(origin or function, devices, reduction)):
        return function(*jax.tree.map(jnp.asarray, tuple(inputs or ())))


def _run(
    function: Callable[..., PyTree], inputs: Sequence[PyTree] | None, devices: Sequence[jax.Device]
) -> PyTree:
    replicas = len(devices)
    mesh = jax.sharding.Mesh(np.array(devices), (AXIS,))
    arguments = tuple(inputs or ())
    outfeeds: list[IPUOutfeedQueue] = []
    taken: list[tuple[IPUInfeedQueue, int]] = []

    def traced(arguments: tuple, given: list[PyTree] | None) -> tuple[PyTree, list[PyTree]]:
        own = Tape(given)
        with bound(_tape, own), trace_for_replicas(replicas):
            outputs = function(*arguments)
        outfeeds[:] = [outfeed for outfeed, _ in own.puts.values()]
        taken[:] = own.taken
        values = [jax.tree.map(lambda leaf: leaf[:, None], v) for _, v in own.puts.values()]
        return outputs, values

    program = over_replicas(traced, mesh, (REPLICATED, SHARDED), (REPLICATED, SHARDED))
    jax.eval_shape(program, arguments, None)
    given = [
        jax.tree.map(
            lambda leaf, count=count: leaf.reshape(count, replicas, *leaf.shape[1:]),
            infeed.take(count * replicas),
        )
        for infeed, count in taken
    ]
    replicated = jax.sharding.NamedSharding(mesh, REPLICATED)
    sharded = jax.sharding.NamedSharding(mesh, SHARDED)
    outputs, values = jax.jit(program)(
        jax.device_put(arguments, replicated), jax.device_put(given, sharded)
    )
    for outfeed, value in zip(outfeeds, values, strict=True):
        host = jax.tree.map(np.asarray, value)
        outfeed.put(jax.tree.map(lambda leaf: leaf[:, 0], host) if replicas == 1 else host)
    return outputs
