"""Functions of arrays that run on all replicas as one program, with queues to and from the host.

A program is traced twice: first to see what it takes from queues, then with that data as arguments.
If it turns out to call a pipeline, which is many programs by itself, it is called on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from convoy.engine.data.placement import AXIS, REPLICATED, SHARDED
from convoy.engine.step.all_reduce import trace_for_replicas
from convoy.engine.step.replicate import over_replicas


class Source(Protocol):
    """A queue that a program takes data from."""

    def shapes(self) -> Any:
        """Return the shapes and types of an element."""
        ...

    def take(self, count: int) -> Any:
        """Return the next elements, along a new first axis."""
        ...


class Sink(Protocol):
    """A queue that a program puts results into."""

    def put(self, values: Any) -> None:
        """Add results: the first axis counts them, the second, if there are several, replicas."""
        ...


@dataclass
class Tape:
    """What a program takes from queues and puts into them, while it is traced."""

    given: list[Any] | None = None
    """The data of each loop over a source, in order; `None` while that is being found out."""
    taken: list[tuple[Source, int]] = field(default_factory=list)
    puts: dict[int, tuple[Sink, Any]] = field(default_factory=dict)
    """What was put into each sink so far, along a first axis."""

    def data(self, source: Source, count: int) -> Any:
        """Return the next elements of a source, for this replica."""
        number = len(self.taken)
        self.taken.append((source, count))
        if self.given is not None:
            return jax.tree.map(lambda leaf: leaf[:, 0], self.given[number])
        return jax.tree.map(
            lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), source.shapes()
        )

    def put(self, sink: Sink, values: Any) -> None:
        """Note what goes into a sink.

        Raises:
            ValueError: if something did before.
        """
        if id(sink) in self.puts:
            raise ValueError("A program uses an outfeed queue twice. Make a queue for each.")
        self.puts[id(sink)] = sink, values


@dataclass
class Host:
    """A function that is called on the host, as there are pipelines in it.

    Attributes:
        origin: the function, as the user passed it.
        devices: those of the program.
        reduction: of gradients over replicas, if a strategy runs it.
        pipelines: how many it has called so far.
    """

    origin: Callable[..., Any]
    devices: Sequence[jax.Device]
    reduction: Literal["sum", "mean"] | None
    pipelines: int = 0


class NeedsHostError(Exception):
    """Says that what is being traced calls a pipeline."""


_tape: ContextVar[Tape | None] = ContextVar("convoy_ipu_tape", default=None)
_host: ContextVar[Host | None] = ContextVar("convoy_ipu_host", default=None)


def tape() -> Tape | None:
    """Return the tape of the program that is being traced."""
    return _tape.get()


def host() -> Host | None:
    """Return the function that is being called on the host, if there is one."""
    return _host.get()


def run(
    function: Callable[..., Any],
    inputs: Sequence[Any] | None,
    devices: Sequence[jax.Device],
    origin: Callable[..., Any] | None = None,
    reduction: Literal["sum", "mean"] | None = None,
) -> Any:
    """Run a function on every device; or on the host, if there are pipelines in it.

    Args:
        function: of arrays.
        inputs: its arguments.
        devices: each has a replica.
        origin: the user's function, if that is another.
        reduction: of gradients over the replicas of pipelines; by default the strategy's around it.

    Returns:
        What it returns on the first.
    """
    try:
        return _run(function, inputs, devices)
    except NeedsHostError:
        token = _host.set(Host(origin or function, devices, reduction))
    try:
        return function(*jax.tree.map(jnp.asarray, tuple(inputs or ())))
    finally:
        _host.reset(token)


def _run(
    function: Callable[..., Any], inputs: Sequence[Any] | None, devices: Sequence[jax.Device]
) -> Any:
    replicas = len(devices)
    mesh = jax.sharding.Mesh(np.array(devices), (AXIS,))
    arguments = tuple(inputs or ())
    sinks: list[Sink] = []
    taken: list[tuple[Source, int]] = []

    def traced(arguments: tuple, given: list[Any] | None) -> tuple[Any, list[Any]]:
        own = Tape(given)
        token = _tape.set(own)
        try:
            with trace_for_replicas(replicas):
                outputs = function(*arguments)
        finally:
            _tape.reset(token)
        sinks[:] = [sink for sink, _ in own.puts.values()]
        taken[:] = own.taken
        values = [jax.tree.map(lambda leaf: leaf[:, None], v) for _, v in own.puts.values()]
        return outputs, values

    program = over_replicas(traced, mesh, (REPLICATED, SHARDED), (REPLICATED, SHARDED))
    jax.eval_shape(program, arguments, None)
    given = [
        jax.tree.map(
            lambda leaf, count=count: leaf.reshape(count, replicas, *leaf.shape[1:]),
            source.take(count * replicas),
        )
        for source, count in taken
    ]
    everywhere = jax.sharding.NamedSharding(mesh, REPLICATED)
    divided = jax.sharding.NamedSharding(mesh, SHARDED)
    outputs, values = jax.jit(program)(
        jax.device_put(arguments, everywhere), jax.device_put(given, divided)
    )
    for sink, value in zip(sinks, values, strict=True):
        host = jax.tree.map(np.asarray, value)
        sink.put(jax.tree.map(lambda leaf: leaf[:, 0], host) if replicas == 1 else host)
    return outputs
