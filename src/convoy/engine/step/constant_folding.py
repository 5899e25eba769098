"""What a step computes from weights alone, done once for many device calls.

A step that does not train returns most of its state as it got it. From those values follow folded
and packed weights and whatever else a layer makes of its weights alone; they are computed when the
weights have changed, and kept beside them in between.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import jax
from convoy.engine.replica_axis import AXIS, as_if_replicated
from convoy.engine.state import Arrays, State
from convoy.engine.step.replicate import Roles
from convoy.engine.step.step import Fetch, Forward
from convoy.jaxpr import Trace, evaluate, needed_for, read
from jax.extend.core import Var

Step = Callable[[State, Any], tuple[State, Any]]
Rewrite = Callable[[Trace, Collection[Var]], Trace]

# Programs whose prepared values are kept: say, whole batches and the last one of two modes.
KEPT_PROGRAMS = 4


class Hoisted:
    """A step without training, divided into what depends on constants only, and the rest."""

    @classmethod
    def of(
        cls,
        step: Step,
        state: State,
        batch: Any,
        roles: Roles,
        rewrite: Rewrite,
        mesh: jax.sharding.Mesh | None,
        replicas: int,
    ) -> Hoisted | None:
        """Divide a step, unless it has effects, or looks at other replicas.

        Args:
            step: the step; it must return trainable variables as they are.
            state: the shapes and types of its state.
            batch: those of a batch.
            roles: what the state's variables are.
            rewrite: is given the step's trace and those of its inputs that are constant.
            mesh: the devices it will run on, if not only JAX's default one.
            replicas: how many of them divide a batch.
        """
        with as_if_replicated(replicas):
            trace, structure = _trace(step, state, batch, replicas)
        return None if trace.has_effects else cls(trace, structure, state, roles, rewrite, mesh)

    def __init__(
        self,
        trace: Trace,
        structure: Any,
        state: State,
        roles: Roles,
        rewrite: Rewrite,
        mesh: jax.sharding.Mesh | None,
    ) -> None:
        self._structure = structure
        trainable, length = len(state.trainable), sum(map(len, state))
        # Seeds may differ between replicas, so they are not constant even if nobody draws.
        self._changing = [
            index
            for index, is_seed in enumerate(roles.seeds, start=trainable)
            if is_seed or trace.outputs[index] is not trace.inputs[index]
        ]
        others = set(self._changing)
        statistics = range(trainable, trainable + len(state.non_trainable))
        self._constant = [*range(trainable), *(i for i in statistics if i not in others)]
        seeds = tuple(roles.seeds[index - trainable] for index in self._changing)
        self.roles = replace(roles, seeds=seeds)

        self._trace = trace = rewrite(trace, [trace.inputs[index] for index in self._constant])
        given = [trace.inputs[index] for index in self._constant]
        metrics = range(trainable + len(state.non_trainable), length)
        self._inputs = [trace.inputs[i] for i in (*self._changing, *metrics)]
        self._inputs += trace.inputs[length:]
        self._outputs = [trace.outputs[i] for i in (*self._changing, *metrics)]
        self._outputs += trace.outputs[length:]
        made = trace.made_from(given)
        self._late, self._needed = needed_for(self._outputs, trace.equations, made)
        self._position = {var: index for index, var in enumerate(given)}
        self._computed = [var for var in self._needed if var not in self._position]
        self._early, self._sources = needed_for(self._computed, trace.equations, given)
        self._prepare = jax.jit(_everywhere(self._compute, mesh))

    def divide(self, state: State) -> tuple[Arrays, State]:
        """Return the constants of a state, and the state without them."""
        leaves = [*state.trainable, *state.non_trainable]
        changing = [leaves[index] for index in self._changing]
        constants = [leaves[index] for index in self._constant]
        return constants, state._replace(trainable=[], non_trainable=changing)

    def join(self, before: State, after: State) -> State:
        """Put what changed back among what did not."""
        leaves = [*before.trainable, *before.non_trainable]
        for index, value in zip(self._changing, after.non_trainable, strict=True):
            leaves[index] = value
        split = len(before.trainable)
        return after._replace(trainable=leaves[:split], non_trainable=leaves[split:])

    def prepare(self, constants: Arrays) -> Arrays:
        """Compute all that depends on constants only."""
        used = [constants[self._position[var]] for var in self._sources]
        return self._prepare(used) if self._computed else []

    def arguments(self, constants: Arrays, prepared: Arrays) -> Arrays:
        """Return what `step` takes in the trainable variables' place."""
        computed = iter(prepared)
        return [
            constants[self._position[var]] if var in self._position else next(computed)
            for var in self._needed
        ]

    def at(self, fetch: Fetch) -> Forward:
        """Return the rest of the step, on what `fetch` finds at a position."""
        return lambda state, position: self._step(state, fetch(*position))

    def _step(self, state: State, batch: Any) -> tuple[State, Any]:
        values = dict(self._trace.constants)
        values.update(zip(self._needed, state.trainable, strict=True))
        changing = [*state.non_trainable, *state.metrics, *jax.tree.leaves(batch)]
        values.update(zip(self._inputs, changing, strict=True))
        evaluate(self._late, values)
        results = [read(atom, values) for atom in self._outputs]
        split = len(state.non_trainable)
        end = split + len(state.metrics)
        new = state._replace(non_trainable=results[:split], metrics=results[split:end])
        return new, jax.tree.unflatten(self._structure, results[end:])

    def _compute(self, sources: Sequence[jax.Array]) -> Arrays:
        values = self._trace.constants | dict(zip(self._sources, sources, strict=True))
        evaluate(self._early, values)
        return [values[var] for var in self._computed]


class Prepared:
    """The values that some programs prepared last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hoisted, tuple[list[weakref.ref], Arrays]] = OrderedDict()

    def get(self, hoisted: Hoisted, constants: Arrays) -> Arrays:
        """Return what a program takes in the weights' place, prepared anew if they changed."""
        made_from, values = self._kept.pop(hoisted, ([], []))
        same = len(made_from) == len(constants) and all(
            reference() is value for reference, value in zip(made_from, constants, strict=True)
        )
        if not same:
            del values  # before the new ones are made, so that both need not fit
            values = hoisted.prepare(constants)
            made_from = [weakref.ref(value) for value in constants]
        self._kept[hoisted] = (made_from, values)
        if len(self._kept) > KEPT_PROGRAMS:
            self._kept.popitem(last=False)
        return hoisted.arguments(constants, values)

    def clear(self) -> None:
        self._kept.clear()


def _trace(step: Step, state: State, batch: Any, replicas: int) -> tuple[Trace, Any]:
    leaves, structure = jax.tree.flatten((state, batch))
    outcome: Any = None

    def flat(*values: Any) -> list[Any]:
        nonlocal outcome
        new, result = step(*jax.tree.unflatten(structure, values))
        results, outcome = jax.tree.flatten(result)
        return [*jax.tree.leaves(new), *results]

    return Trace.of(flat, leaves, {AXIS: replicas} if replicas > 1 else {}), outcome


def _everywhere(
    function: Callable[[Any], Any], mesh: jax.sharding.Mesh | None
) -> Callable[[Any], Any]:
    if mesh is None:
        return function
    spec = jax.sharding.PartitionSpec()
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
