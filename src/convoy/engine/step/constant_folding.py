"""Constant folding for inference: values that depend only on weights are computed once.

    weights ----> early equations ----> folded weights ---+
       |         (run when weights change)                |
       +--------------------------------------------------+--> late equations --> outputs
    batch, random state, metrics -------------------------+   (run for every batch)

The step is traced once, and its equations are divided into two groups. Early equations depend only
on constants; examples are a batch normalisation folded into a convolution, and weights packed for a
CPU kernel. They run when a weight has changed, and their results are cached. Late equations run for
every batch.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
from convoy.engine.data.local_batch import Fetch
from convoy.engine.data.placement import AXIS, REPLICATED
from convoy.engine.state import State
from convoy.engine.step.all_reduce import trace_for_replicas
from convoy.engine.step.replicate import Roles, over_replicas
from convoy.engine.step.step import ForwardStep, Position
from convoy.jaxpr import Rewrite, Trace, evaluate, needed_for, read
from convoy.types import Arrays, Batch, PyTree, Shapes

BatchStep = Callable[[State, Batch], tuple[State, PyTree]]

# Programs whose folded weights are kept: for example complete and incomplete batches in two modes.
KEPT_PROGRAMS = 4


class FoldedStep:
    """An inference step, divided into early and late equations."""

    @classmethod
    def of(
        cls,
        step: BatchStep,
        state: Shapes,
        batch: Shapes,
        roles: Roles,
        rewrite: Rewrite,
        mesh: jax.sharding.Mesh | None,
        replicas: int,
    ) -> FoldedStep | None:
        """Divide a step; return `None` if it has effects, or communicates with other replicas.

        Args:
            step: the step, which must return trainable variables unchanged.
            state: shapes and types of its state.
            batch: shapes and types of a batch.
            roles: the roles of the state's variables.
            rewrite: function that takes the step's trace and its constant inputs, and returns an
                optimised trace.
            mesh: the devices that it will run on, if not only JAX's default one.
            replicas: replicas that divide a batch.
        """
        with trace_for_replicas(replicas):
            trace, structure = _trace(step, state, batch, replicas)
        return None if trace.has_effects else cls(trace, structure, state, roles, rewrite, mesh)

    def __init__(
        self,
        trace: Trace,
        structure: jax.tree_util.PyTreeDef,
        state: Shapes,
        roles: Roles,
        rewrite: Rewrite,
        mesh: jax.sharding.Mesh | None,
    ) -> None:
        # Inputs and outputs of the trace are flat lists, in the order of `State`:
        #
        #     inputs    trainable | non-trainable | metrics | batch
        #     outputs   trainable | non-trainable | metrics | results of the step
        #
        # A non-trainable variable is constant if the step returns its input unchanged. Seeds may
        # differ between replicas, so they never count as constant.
        self._structure = structure
        trainable, length = len(state.trainable), sum(map(len, state))
        self._changing = [
            index
            for index, is_seed in enumerate(roles.seeds, start=trainable)
            if is_seed or trace.outputs[index] is not trace.inputs[index]
        ]
        changing = set(self._changing)
        non_trainable = range(trainable, trainable + len(state.non_trainable))
        self._constant = [*range(trainable), *(i for i in non_trainable if i not in changing)]
        seeds = tuple(roles.seeds[index - trainable] for index in self._changing)
        self.roles = replace(roles, seeds=seeds)

        self._trace = trace = rewrite(trace, [trace.inputs[index] for index in self._constant])
        constants = [trace.inputs[index] for index in self._constant]
        metrics = range(trainable + len(state.non_trainable), length)
        self._inputs = [trace.inputs[i] for i in (*self._changing, *metrics)]
        self._inputs += trace.inputs[length:]
        self._outputs = [trace.outputs[i] for i in (*self._changing, *metrics)]
        self._outputs += trace.outputs[length:]

        # Going backwards from the outputs gives the late equations, and the folded values that they
        # read. Going backwards from these values gives the early equations.
        folded = trace.made_from(constants)
        self._late, self._needed = needed_for(self._outputs, trace.equations, folded)
        self._position = {var: index for index, var in enumerate(constants)}
        self._computed = [var for var in self._needed if var not in self._position]
        self._early, self._sources = needed_for(self._computed, trace.equations, constants)
        compute = self._compute
        if mesh is not None:
            compute = over_replicas(compute, mesh, (REPLICATED,), REPLICATED)
        self._run_early = jax.jit(compute)

    def divide(self, state: State) -> tuple[Arrays, State]:
        """Return the constants of a state, and the state without them."""
        leaves = [*state.trainable, *state.non_trainable]
        changing = [leaves[index] for index in self._changing]
        constants = [leaves[index] for index in self._constant]
        return constants, state._replace(trainable=[], non_trainable=changing)

    def join(self, before: State, after: State) -> State:
        """Return the state after a step, with the constants of the state before it."""
        leaves = [*before.trainable, *before.non_trainable]
        for index, value in zip(self._changing, after.non_trainable, strict=True):
            leaves[index] = value
        split = len(before.trainable)
        return after._replace(trainable=leaves[:split], non_trainable=leaves[split:])

    def fold(self, constants: Arrays) -> Arrays:
        """Run the early equations."""
        used = [constants[self._position[var]] for var in self._sources]
        return self._run_early(used) if self._computed else []

    def arguments(self, constants: Arrays, folded: Arrays) -> Arrays:
        """Return the arrays that the late equations take in place of the trainable variables."""
        computed = iter(folded)
        return [
            constants[self._position[var]] if var in self._position else next(computed)
            for var in self._needed
        ]

    def at(self, fetch: Fetch) -> ForwardStep:
        """Return the late equations as a step on the batch that `fetch` returns for a position."""

        def step(state: State, position: Position) -> tuple[State, PyTree]:
            return self._step(state, fetch(*position))

        return step

    def _step(self, state: State, batch: Batch) -> tuple[State, PyTree]:
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


class FoldedWeights:
    """A cache of the folded weights of the programs that ran last.

    Attributes:
        kept: weights and their folded values by step, in the order of their last use.
    """

    def __init__(self) -> None:
        self.kept: OrderedDict[FoldedStep, tuple[list[weakref.ref], Arrays]] = OrderedDict()

    def get(self, step: FoldedStep, constants: Arrays) -> Arrays:
        """Return the arguments of a step's late equations; fold again if a weight has changed."""
        folded_from, values = self.kept.pop(step, ([], []))
        unchanged = len(folded_from) == len(constants) and all(
            reference() is value for reference, value in zip(folded_from, constants, strict=True)
        )
        if not unchanged:
            del values  # before new ones are computed, so that memory need not hold both
            values = step.fold(constants)
            folded_from = [weakref.ref(value) for value in constants]
        self.kept[step] = (folded_from, values)
        if len(self.kept) > KEPT_PROGRAMS:
            self.kept.popitem(last=False)
        return step.arguments(constants, values)


def _trace(
    step: BatchStep, state: Shapes, batch: Shapes, replicas: int
) -> tuple[Trace, jax.tree_util.PyTreeDef]:
    leaves, structure = jax.tree.flatten((state, batch))
    result_structure = structure

    def flat(*values: jax.Array) -> Arrays:
        nonlocal result_structure
        new, result = step(*jax.tree.unflatten(structure, values))
        results, result_structure = jax.tree.flatten(result)
        return [*jax.tree.leaves(new), *results]

    return Trace.of(flat, leaves, {AXIS: replicas} if replicas > 1 else {}), result_structure
