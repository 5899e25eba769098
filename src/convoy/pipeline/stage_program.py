"""The programs of one stage: forwards, backwards, and backwards in two halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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


class StageProgram:
    """Compiles what a stage does, once for each kind of action.

    Args:
        body: what the stage computes.
        scale: of the gradients that are added up.
        recompute: whether only the stage's input is kept, and the forward pass run once more.
        traced: traces a function with other operations than Keras's own.
    """

    def __init__(
        self,
        body: Body,
        scale: float,
        recompute: bool,
        traced: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self.body, self.scale, self.recompute = body, scale, recompute
        self.forward = jax.jit(traced(self._forward))
        self.backward = jax.jit(traced(self._backward), donate_argnums=3)
        self._traced = traced
        self._halves: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def halves(self, *arguments: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the backward pass in two: gradients of the input, and of the weights.

        The first returns beside the gradients what the second would otherwise compute again.
        """
        if self._halves is None:
            self._halves = _cut(self._traced(self._gradients), arguments, self.scale)
        return self._halves

    def _forward(self, trainable: Arrays, received: tuple[jax.Array, ...], rest: Any) -> Passed:
        if self.recompute:
            (outputs, _), carried = self.body.compute(trainable, received, rest)
            kept: Any = (received, rest)
        else:
            (outputs, _), kept, carried = self._differentiate(trainable, received, rest)
        non_trainable, metrics, loss = carried
        return Passed(outputs, kept, non_trainable, loss, metrics)

    def _differentiate(self, trainable: Arrays, received: Any, rest: Any) -> Any:
        return jax.vjp(
            lambda t, r: self.body.compute(t, r, rest), trainable, received, has_aux=True
        )

    def _gradients(self, trainable: Arrays, kept: Any, gradients: Sequence[Any]) -> Any:
        """Return the gradients of weights and of what was received.

        `gradients` holds, for each output, those that its readers sent.
        """
        pull = self._differentiate(trainable, *kept)[1] if self.recompute else kept
        of_outputs = tuple(sum(parts[1:], parts[0]) for parts in gradients)
        return pull((of_outputs, jnp.float32(1)))

    def _backward(
        self, trainable: Arrays, kept: Any, gradients: Sequence[Any], total: Arrays
    ) -> tuple[Any, Arrays]:
        own, received = self._gradients(trainable, kept, gradients)
        return received, _add(total, own, self.scale)


def _add(total: Arrays, gradients: Arrays, scale: float) -> Arrays:
    return [t + g.astype(t.dtype) * scale for t, g in zip(total, gradients, strict=True)]


def _cut(
    function: Callable[..., Any], arguments: tuple, scale: float
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Cut a function that returns gradients of weights and of inputs into one for each."""
    leaves, structure = jax.tree.flatten(arguments)
    outcome: Any = None

    def flat(*values: Any) -> list[Any]:
        nonlocal outcome
        results, outcome = jax.tree.flatten(function(*jax.tree.unflatten(structure, values)))
        return results

    trace = Trace.of(flat, leaves)
    first, second = outcome.children()
    of_weights = trace.outputs[: first.num_leaves]
    of_inputs = trace.outputs[first.num_leaves :]
    early, _ = needed_for(of_inputs, trace.equations)
    made = {var for equation in early for var in equation.outvars}
    late, shared = needed_for(of_weights, trace.equations, made)

    def inputs(*arguments: Any) -> tuple[Any, Arrays]:
        values = trace.constants | dict(zip(trace.inputs, jax.tree.leaves(arguments), strict=True))
        evaluate(early, values)
        received = [read(atom, values) for atom in of_inputs]
        return jax.tree.unflatten(second, received), [values[var] for var in shared]

    def gradients_of_weights(arguments: tuple, kept: Arrays, total: Arrays) -> Arrays:
        values = trace.constants | dict(zip(trace.inputs, jax.tree.leaves(arguments), strict=True))
        values.update(zip(shared, kept, strict=True))
        evaluate(late, values)
        return _add(total, [read(atom, values) for atom in of_weights], scale)

    return jax.jit(inputs), jax.jit(gradients_of_weights, donate_argnums=2)
