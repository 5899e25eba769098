"""The programs of one stage: forwards, backwards, and backwards in two halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from convoy.engine.loss_scale import LossScale
from convoy.pipeline.stage import Stage
from convoy.trace import Trace, evaluate, needed_for, read

Arrays = list[jax.Array]


class Passed(NamedTuple):
    """What a forward pass leaves behind.

    Attributes:
        outputs: what later stages read, in the order of `Stage.outputs`.
        kept: what the backward pass needs.
        non_trainable: the new values of these variables.
        loss: of the model so far; of the last stage, all of it.
        metrics: of the last stage, their new state.
    """

    outputs: tuple[jax.Array, ...]
    kept: Any
    non_trainable: Arrays
    loss: jax.Array
    metrics: Arrays


class Body(NamedTuple):
    """What a stage computes, as `compute(trainable, received, rest)`.

    It returns `((outputs, own loss), (non_trainable, metrics, loss so far))`; `rest` is all that
    has no gradient.
    """

    stage: Stage
    compute: Callable[..., Any]


Counts = tuple[jax.Array, ...]
"""Of the gradients' elements, those that are large, and all; empty if the loss is not scaled."""


class StageProgram:
    """Compiles what a stage does, once for each kind of action.

    Args:
        body: what the stage computes.
        scale: of the gradients that are added up.
        recompute: whether only the stage's input is kept, and the forward pass run once more.
        traced: traces a function with other operations than Keras's own.
        loss_scale: which takes the statistics of gradients; `None` if the loss is not scaled.
        records: whether each program returns a number that is there when it has ended; what else
            it returns may be handed on to others, and is gone when somebody asks.
    """

    def __init__(
        self,
        body: Body,
        scale: float,
        recompute: bool,
        traced: Callable[[Callable[..., Any]], Callable[..., Any]],
        loss_scale: LossScale | None = None,
        records: bool = False,
    ) -> None:
        self.body, self.scale, self.recompute = body, scale, recompute
        self.loss_scale, self.records = loss_scale, records
        self.forward = jax.jit(traced(self._forward))
        self.backward = jax.jit(traced(self._backward), donate_argnums=(4, 5))
        self._traced = traced
        self._halves: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def halves(self, *arguments: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the backward pass in two: gradients of the input, and of the weights.

        The first returns beside the gradients what the second would otherwise compute again.
        """
        if self._halves is None:
            self._halves = self._cut(arguments)
        return self._halves

    def _forward(self, trainable: Arrays, received: tuple[jax.Array, ...], rest: Any) -> Passed:
        if self.recompute:
            (outputs, _), carried = self.body.compute(trainable, received, rest)
            kept: Any = (received, rest)
        else:
            kept, (outputs, carried) = self._differentiate(trainable, received, rest)
        non_trainable, metrics, loss = carried
        return Passed(outputs, kept, non_trainable, loss, metrics)

    def _differentiate(self, trainable: Arrays, received: tuple, rest: Any) -> Any:
        """Return the gradients' function, for what is not in whole numbers, and the results."""

        def compute(trainable: Arrays, moving: Arrays) -> Any:
            values = iter(moving)
            full = tuple(next(values) if _has_gradient(x) else x for x in received)
            (outputs, own), carried = self.body.compute(trainable, full, rest)
            return ([x for x in outputs if _has_gradient(x)], own), (outputs, carried)

        moving = [x for x in received if _has_gradient(x)]
        _, pull, results = jax.vjp(compute, trainable, moving, has_aux=True)
        return pull, results

    def _gradients(
        self, trainable: Arrays, kept: Any, gradients: Sequence[Any], factor: jax.Array | None
    ) -> Any:
        """Return the gradients of weights and of what was received.

        `gradients` holds, for each output, those that its readers sent, which is none for whole
        numbers; `factor` is that of the loss.
        """
        pull = self._differentiate(trainable, *kept)[0] if self.recompute else kept
        of_outputs = [sum(parts[1:], parts[0]) for parts in gradients if parts]
        return pull((of_outputs, jnp.float32(1) if factor is None else factor))

    def _backward(
        self,
        trainable: Arrays,
        kept: Any,
        gradients: Sequence[Any],
        factor: jax.Array | None,
        total: Arrays,
        counts: Counts,
    ) -> tuple[Any, Arrays, Counts, Any]:
        own, received = self._gradients(trainable, kept, gradients, factor)
        return received, *self._add(total, counts, own), self._done()

    def _add(self, total: Arrays, counts: Counts, gradients: Arrays) -> tuple[Arrays, Counts]:
        added = [t + g.astype(t.dtype) * self.scale for t, g in zip(total, gradients, strict=True)]
        if self.loss_scale is None:
            return added, counts
        before = self.loss_scale.begin()._replace(large=counts[0], counted=counts[1])
        after = self.loss_scale.count(before, gradients)
        return added, (after.large, after.counted)

    def _done(self) -> jax.Array | None:
        return jnp.zeros(()) if self.records else None

    def _cut(self, arguments: tuple) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Cut the gradients into those of the input and those of the weights."""
        leaves, structure = jax.tree.flatten(arguments)
        compute = self._traced(self._gradients)
        outcome: Any = None

        def flat(*values: Any) -> list[Any]:
            nonlocal outcome
            results, outcome = jax.tree.flatten(compute(*jax.tree.unflatten(structure, values)))
            return results

        trace = Trace.of(flat, leaves)
        first, second = outcome.children()
        of_weights = trace.outputs[: first.num_leaves]
        of_inputs = trace.outputs[first.num_leaves :]
        early, _ = needed_for(of_inputs, trace.equations)
        made = {var for equation in early for var in equation.outvars}
        late, shared = needed_for(of_weights, trace.equations, made)

        def given(arguments: tuple) -> dict[Any, Any]:
            values = zip(trace.inputs, jax.tree.leaves(arguments), strict=True)
            return trace.constants | dict(values)

        def inputs(*arguments: Any) -> tuple[Any, Arrays, Any]:
            values = given(arguments)
            evaluate(early, values)
            received = [read(atom, values) for atom in of_inputs]
            received = jax.tree.unflatten(second, received)
            return received, [values[var] for var in shared], self._done()

        def weights(
            arguments: tuple, kept: Arrays, total: Arrays, counts: Counts
        ) -> tuple[Arrays, Counts, Any]:
            values = given(arguments)
            values.update(zip(shared, kept, strict=True))
            evaluate(late, values)
            own = [read(atom, values) for atom in of_weights]
            return *self._add(total, counts, own), self._done()

        return jax.jit(inputs), jax.jit(weights, donate_argnums=(2, 3))


def _has_gradient(value: jax.Array) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
