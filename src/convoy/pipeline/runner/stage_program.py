"""The programs of one stage: forwards, backwards, and backwards in two halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from convoy.cpu.dispatch import dummy_work
from convoy.engine.numerics.loss_scale import LossScale
from convoy.engine.step.step import Fetch
from convoy.jaxpr import Trace, evaluate, needed_for, read
from convoy.pipeline.runner.stage_function import Body, Rest, fetched
from jax.extend.core import JaxprEqn, Var

Arrays = list[jax.Array]
Traced = Callable[[Callable[..., Any]], Callable[..., Any]]
Counts = tuple[jax.Array, ...]
"""Of the gradients' elements, those that are large, and all; empty if the loss is not scaled."""


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


@dataclass(frozen=True)
class Parts:
    """The equations of a stage, divided into those of its programs.

    Attributes:
        trace: the stage forwards and backwards.
        inputs: its inputs: the weights, what was received, the rest, gradients, the loss's factor.
        structure: of the forward pass's results.
        results: what the forward pass computes.
        of_weights, of_received: the gradients.
        forward, backward: the equations of the two passes.
        computed: what the backward pass needs that the forward pass returns for it.
        at_hand: what it needs of that which the forward pass was given, but for weights, or
            returns as an output.
        early, late: the backward pass in two halves, of what was received and of the weights.
        shared: what the second half needs of the first.
    """

    trace: Trace
    inputs: tuple[list[Var], ...]
    structure: Any
    results: Sequence[Any]
    of_weights: Sequence[Any]
    of_received: Sequence[Any]
    forward: list[JaxprEqn]
    backward: list[JaxprEqn]
    computed: list[Var]
    at_hand: list[Var]
    early: list[JaxprEqn]
    late: list[JaxprEqn]
    shared: list[Var]


class StageProgram:
    """Compiles what a stage does, once for each kind of action.

    Forward and backward pass are traced together and cut in two. From one to the other goes what
    depends on data; what follows from weights or from nothing is computed again.

    Args:
        body: what the stage computes.
        fetch: finds a micro-batch.
        scale: of the gradients that are added up.
        recompute: whether only the stage's input is kept, and the forward pass run once more.
        traced: traces a function with other operations than Keras's own.
        loss_scale: which takes the statistics of gradients; `None` if the loss is not scaled.
        records: whether each program returns a number that is there when it has ended; what else
            it returns may be handed on to others, and is gone when somebody asks.
        program: is given every program with its name, and returns what is called instead.
    """

    def __init__(
        self,
        body: Body,
        fetch: Fetch,
        scale: float,
        recompute: bool,
        traced: Traced,
        loss_scale: LossScale | None = None,
        records: bool = False,
        program: Callable[[str, Any], Any] = lambda _, program: program,
    ) -> None:
        self.body, self.fetch, self.scale, self.recompute = body, fetch, scale, recompute
        self.loss_scale, self.records = loss_scale, records
        self.run_forward = program("forward", jax.jit(self._forward))
        self.backward = program("backward", jax.jit(self._backward, donate_argnums=(4, 5)))
        self.backward_input = program("backward input", jax.jit(self._backward_input))
        self.backward_weights = program(
            "backward weights", jax.jit(self._backward_weights, donate_argnums=(5, 6))
        )
        self._traced = traced
        self._parts: Parts | None = None

    def forward(
        self, trainable: Arrays, received: tuple[jax.Array, ...], rest: Rest, scaled: bool
    ) -> Passed:
        """Run the stage forwards; `scaled` says whether the loss will have a factor."""
        parts = self.parts(trainable, received, rest, scaled)
        results, computed, _ = self.run_forward(trainable, received, rest)
        outputs, (non_trainable, metrics, loss) = results
        if self.recompute:
            return Passed(outputs, (received, rest), non_trainable, loss, metrics)
        # What the program was given needs no copy, and neither does what it returns anyway.
        given = zip([*parts.inputs[1], *parts.inputs[2]], [*received, *_given(rest)], strict=False)
        returned = zip(parts.results, outputs, strict=False)
        at_hand = dict(given) | {var: x for var, x in returned if isinstance(var, Var)}
        kept = computed, [at_hand[var] for var in parts.at_hand]
        return Passed(outputs, kept, non_trainable, loss, metrics)

    def parts(
        self, trainable: Arrays, received: tuple[jax.Array, ...], rest: Rest, scaled: bool
    ) -> Parts:
        """Trace the stage for arguments of such shapes, and divide it; only the first time."""
        if self._parts is None:
            self._parts = self._divide(trainable, received, rest, scaled)
        return self._parts

    def _divide(self, trainable: Arrays, received: Any, rest: Rest, scaled: bool) -> Parts:
        rest = jax.eval_shape(lambda rest: fetched(rest, self.fetch), rest)
        compute = self._traced(self.body.compute)
        (outputs, _), _ = jax.eval_shape(compute, trainable, received, rest)
        of_outputs = [output for output in outputs if _has_gradient(output)]
        factor = jax.ShapeDtypeStruct((), jnp.float32) if scaled else None
        groups = (trainable, received, _in_order(rest), of_outputs, factor)
        leaves, structure = jax.tree.flatten(groups)
        outcome: Any = None

        def flat(*values: Any) -> list[Any]:
            nonlocal outcome
            results = self._both(*jax.tree.unflatten(structure, values))
            found, outcome = jax.tree.flatten(results)
            return found

        trace = Trace.of(self._traced(flat), leaves)
        sizes = [len(jax.tree.leaves(group)) for group in groups]
        inputs = tuple(_cut(trace.inputs, sizes))
        first, second, _ = outcome.children()
        ends = [first.num_leaves, second.num_leaves]
        results, of_weights, of_received = _cut(trace.outputs, [*ends, len(trace.outputs)])
        forward, _ = needed_for(results, trace.equations)
        data = len(jax.tree.leaves(rest.data))
        depends, given = _dependent(forward, [*inputs[1], *inputs[2]])
        if self.recompute:
            depends = set()
        at_hand = {*depends, *given}
        backward, used = needed_for([*of_weights, *of_received], trace.equations, at_hand)
        fetched_now = set(inputs[2][len(inputs[2]) - data :])
        returned = {atom for atom in results[: len(outputs)] if isinstance(atom, Var)}
        computed = [var for var in used if var in depends or var in fetched_now]
        early, _ = needed_for(of_received, backward, at_hand)
        made = {var for equation in early for var in equation.outvars}
        late, shared = needed_for(of_weights, backward, at_hand | made)
        return Parts(
            trace,
            inputs,
            first,
            results,
            of_weights,
            of_received,
            forward,
            backward,
            [var for var in computed if var not in returned],
            [var for var in used if var not in computed or var in returned],
            early,
            late,
            [var for var in shared if var in made],
        )

    def _both(
        self, trainable: Arrays, received: Any, rest: Any, of_outputs: Arrays, factor: Any
    ) -> Any:
        """Run forwards and backwards: gradients are for what is not in whole numbers."""

        def compute(trainable: Arrays, moving: Arrays) -> Any:
            values = iter(moving)
            full = tuple(next(values) if _has_gradient(x) else x for x in received)
            (outputs, own), carried = self.body.compute(trainable, full, _as_rest(rest))
            return ([x for x in outputs if _has_gradient(x)], own), (outputs, carried)

        moving = [x for x in received if _has_gradient(x)]
        (_, own), pull, results = jax.vjp(compute, trainable, moving, has_aux=True)
        scale = jnp.ones_like(own) if factor is None else factor
        return results, *pull((of_outputs, scale))

    def _values(self, *groups: Any) -> dict[Var, Any]:
        """Return the values of the trace's inputs, as many groups of them as there are."""
        parts = self._known
        values = dict(parts.trace.constants)
        for variables, group in zip(parts.inputs, groups, strict=False):
            values.update(zip(variables, jax.tree.leaves(group), strict=True))
        return values

    @property
    def _known(self) -> Parts:
        assert self._parts is not None, "a stage goes forwards first"
        return self._parts

    def _forward(self, trainable: Arrays, received: Any, rest: Rest) -> Any:
        parts = self._known
        values = self._values(trainable, received, _in_order(fetched(rest, self.fetch)))
        evaluate(parts.forward, values)
        results = [read(atom, values) for atom in parts.results]
        computed = [] if self.recompute else [values[var] for var in parts.computed]
        work = dummy_work((trainable, received, rest))
        return jax.tree.unflatten(parts.structure, results), computed, work

    def _at_hand(
        self, trainable: Arrays, kept: Any, gradients: Sequence[Any], factor: jax.Array | None
    ) -> dict[Var, Any]:
        """Return what the backward pass begins with.

        `gradients` holds, for each output, those that its readers sent, which is none for whole
        numbers; `factor` is that of the loss.
        """
        parts = self._known
        if self.recompute:
            received, rest = kept
            values = self._values(trainable, received, _in_order(fetched(rest, self.fetch)))
        else:
            values = self._values(trainable)
            values.update(zip(parts.computed, kept[0], strict=True))
            values.update(zip(parts.at_hand, kept[1], strict=True))
        of_outputs = [sum(sent[1:], sent[0]) for sent in gradients if sent]
        beside = jax.tree.leaves((of_outputs, factor))
        values.update(zip([*parts.inputs[3], *parts.inputs[4]], beside, strict=True))
        return values

    def _backward(
        self,
        trainable: Arrays,
        kept: Any,
        gradients: Sequence[Any],
        factor: jax.Array | None,
        total: Arrays,
        counts: Counts,
    ) -> tuple[Any, Arrays, Counts, Any]:
        parts = self._known
        values = self._at_hand(trainable, kept, gradients, factor)
        evaluate(parts.backward, values)
        received = [read(atom, values) for atom in parts.of_received]
        own = [read(atom, values) for atom in parts.of_weights]
        return received, *self._add(total, counts, own), self._done()

    def _backward_input(
        self, trainable: Arrays, kept: Any, gradients: Sequence[Any], factor: jax.Array | None
    ) -> tuple[Any, Arrays, Any]:
        """Return the gradients of what was received, and what the weights' will need of it."""
        parts = self._known
        values = self._at_hand(trainable, kept, gradients, factor)
        evaluate(parts.early, values)
        received = [read(atom, values) for atom in parts.of_received]
        return received, [values[var] for var in parts.shared], self._done()

    def _backward_weights(
        self,
        trainable: Arrays,
        kept: Any,
        gradients: Sequence[Any],
        factor: jax.Array | None,
        shared: Arrays,
        total: Arrays,
        counts: Counts,
    ) -> tuple[Arrays, Counts, Any]:
        parts = self._known
        values = self._at_hand(trainable, kept, gradients, factor)
        values.update(zip(parts.shared, shared, strict=True))
        evaluate(parts.late, values)
        own = [read(atom, values) for atom in parts.of_weights]
        return *self._add(total, counts, own), self._done()

    def _add(self, total: Arrays, counts: Counts, gradients: Arrays) -> tuple[Arrays, Counts]:
        added = [t + g.astype(t.dtype) * self.scale for t, g in zip(total, gradients, strict=True)]
        if self.loss_scale is None:
            return added, counts
        before = self.loss_scale.begin()._replace(large=counts[0], counted=counts[1])
        after = self.loss_scale.count(before, self.loss_scale.chosen(gradients, []))
        return added, (after.large, after.counted)

    def _done(self) -> jax.Array | None:
        return jnp.zeros(()) if self.records else None


def _in_order(rest: Rest) -> tuple:
    """Return the rest with the data behind all else."""
    return rest.non_trainable, rest.metrics, rest.loss, rest.data


def _as_rest(ordered: tuple) -> Rest:
    non_trainable, metrics, loss, data = ordered
    return Rest(non_trainable, data, metrics, loss)


def _given(rest: Rest) -> list[jax.Array]:
    """Return the rest without the data, which a program fetches by itself."""
    return jax.tree.leaves(_in_order(rest)[:3])


def _dependent(equations: list[JaxprEqn], sources: list[Var]) -> tuple[set[Var], set[Var]]:
    """Return what equations compute from some sources, and the sources."""
    found = set(sources)
    for equation in equations:
        if any(isinstance(atom, Var) and atom in found for atom in equation.invars):
            found.update(equation.outvars)
    return found - set(sources), set(sources)


def _cut(values: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    parts, start = [], 0
    for size in sizes:
        parts.append(list(values[start : start + size]))
        start += size
    return parts


def _has_gradient(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
