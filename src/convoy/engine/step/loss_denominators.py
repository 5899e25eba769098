"""What losses divide by: sums over a whole batch, of which a share knows its own part only.

A loss with a mask is divided by how much the mask keeps, some losses by the weights of their
samples. Replicas tell each other their parts. The micro-batches of a weight update come one after
the other, so they are asked for theirs before the first one runs; XLA computes no more of a model
for that than the parts depend on, which is data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from convoy.engine.replica_axis import AXIS, replicas_in_trace
from convoy.engine.state import Arrays


class Answers:
    """What a loss is told of whole batches.

    Attributes:
        means: over all shares, in the order in which the loss asks; `None` if not known yet.
        asked: whether it has asked at all.
    """

    def __init__(self, means: Arrays | None = None) -> None:
        self.means = means
        self.asked = False


_answers: ContextVar[Answers | None] = ContextVar("convoy_answers", default=None)
_parts: ContextVar[Arrays | None] = ContextVar("convoy_parts", default=None)


def whole(own: jax.Array) -> jax.Array:
    """Return the mean over all shares of a batch, by the part of one share."""
    answers, parts = _answers.get(), _parts.get()
    if answers is None or parts is None:
        return _over_replicas(own)
    parts.append(own)
    answers.asked = True
    return own if answers.means is None else answers.means[len(parts) - 1]


@contextlib.contextmanager
def answered_by(answers: Answers) -> Iterator[None]:
    """Have losses that are traced in the block ask for what they divide by."""
    token = _answers.set(answers)
    try:
        yield
    finally:
        _answers.reset(token)


@contextlib.contextmanager
def asking() -> Iterator[Arrays]:
    """Enclose one loss: what it asks is counted from the start. Yields the parts of its share."""
    parts: Arrays = []
    token = _parts.set(parts)
    try:
        yield parts
    finally:
        _parts.reset(token)


def mean_over_update(parts_at: Callable[[jax.Array], Arrays], count: int) -> Arrays:
    """Return the means over the micro-batches of a weight update, and over replicas.

    Args:
        parts_at: returns the parts of a micro-batch, by its number.
        count: micro-batches of the update.
    """
    with answered_by(Answers()):
        parts = jax.eval_shape(parts_at, jnp.int32(0))
        nothing = [jnp.zeros(part.shape, part.dtype) for part in parts]
        totals = jax.lax.fori_loop(
            0, count, lambda number, total: jax.tree.map(jnp.add, total, parts_at(number)), nothing
        )
    return [_over_replicas(total / count) for total in totals]


def _over_replicas(own: jax.Array) -> jax.Array:
    return jax.lax.pmean(own, AXIS) if replicas_in_trace() > 1 else own
