"""Compiled programs of one stage: forward pass, backward pass, and halves of the backward pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from convoy.cpu.dispatch import dummy_work
from convoy.engine.data.local_batch import Fetch
from convoy.engine.data.placement import tree_bytes
from convoy.engine.numerics.loss_scale import LossScaling
from convoy.jaxpr import Atom, Trace, Values, depending_on, evaluate, needed_for, read
from convoy.pipeline.runner.stage_forward import Received, StageFunction, StageInputs, Transform
from convoy.pipeline.stages import has_gradient
from convoy.types import Arrays, PyTree
from jax.extend.core import JaxprEqn, Var

# A stage is traced once, with its forward and backward pass in one function. The equations of the
# trace are then divided into programs:
#
#      weights    received tensors    other inputs (statistics, micro-batch, metrics, loss so far)
#         |               |                |
#         v               v                v
#      +-------------------------------------+
#      |  F   forward pass                   |---> outputs, to later stages
#      +-------------------------------------+---> new statistics, metrics, loss so far
#         |
#         |  residuals, read by the backward pass:
#         |    computed   values that depend on the data; F returns them as extra results
#         |    existing   inputs or outputs of F; kept by reference, which takes no copy
#         |    none       for values that follow from weights or constants: B computes them again
#         v
#      +-------------------------------------+
#      |  B   backward pass                  |<--- gradients of the outputs, from later stages
#      +-------------------------------------+<--- loss scale
#         |                   |
#         v                   v
#      gradients of        gradients of the weights,
#      received tensors    added to the accumulators
#
# With activation checkpointing the only residuals are the inputs of F, and B contains F.
#
# Zero-bubble schedules run B in two halves. I has the equations that the gradients of the received
# tensors depend on, so an earlier stage can continue as soon as possible. W has those that only the
# gradients of the weights depend on, and runs when the device would otherwise be idle. Intermediate
# values of I that W reads are passed on as `shared`:
#
#      residuals ---+--->  I  ---> gradients of received tensors
#                   |      | shared
#                   +--->  W  ---> gradients of the weights

GradientCounts = tuple[jax.Array, ...]
"""Number of large elements and of all elements of the gradients; empty without loss scaling."""

Residuals = PyTree
"""The computed and the existing residuals, or the inputs of a stage with checkpointing."""


class BackwardInputs(NamedTuple):
    """Inputs of a backward pass, or of either half.

    Attributes:
        trainable: values of the trainable variables.
        residuals: residuals of the forward pass.
        gradients: for each output, the gradients that its readers have sent; none for integers.
        loss_scale: loss scale; `None` if the loss is not scaled.
    """

    trainable: Arrays
    residuals: Residuals
    gradients: Sequence[Sequence[jax.Array]]
    loss_scale: jax.Array | None


class ForwardResult(NamedTuple):
    """Results of a forward pass.

    Attributes:
        outputs: tensors for later stages, in the order of `Stage.outputs`.
        residuals: values that the backward pass reads.
        non_trainable: new values of the non-trainable variables.
        loss: sum of the losses up to this stage.
        metrics: new state of the metrics, for the last stage.
    """

    outputs: tuple[jax.Array, ...]
    residuals: Residuals
    non_trainable: Arrays
    loss: jax.Array
    metrics: Arrays


@dataclass(frozen=True)
class StageTrace:
    """The traced equations of a stage, divided into those of its programs.

    Attributes:
        trace: forward and backward pass.
        inputs: variables of the trace's inputs, in groups: weights, received tensors, other inputs,
            gradients of the outputs, loss scale.
        structure: structure of the forward pass's results.
        results: results of the forward pass.
        weight_gradients, received_gradients: results of the backward pass.
        forward, backward: equations of F and B.
        computed, existing: the residuals.
        backward_input, backward_weights: equations of I and W.
        shared: values that W reads from I.
    """

    trace: Trace
    inputs: list[list[Var]]
    structure: jax.tree_util.PyTreeDef
    results: list[Atom]
    weight_gradients: list[Atom]
    received_gradients: list[Atom]
    forward: list[JaxprEqn]
    backward: list[JaxprEqn]
    computed: list[Var]
    existing: list[Var]
    backward_input: list[JaxprEqn]
    backward_weights: list[JaxprEqn]
    shared: list[Var]


@dataclass(eq=False)
class StageProgram:
    """Compiles the actions of a stage, one program for each kind.

    Attributes:
        function: computation of the stage.
        fetch: function that reads a micro-batch at a position.
        gradient_factor: factor of the gradients that are accumulated.
        activation_checkpointing: whether to use activation checkpointing.
        transform: transform under which the function is traced.
        loss_scaling: choice of the loss scale; `None` if the loss is not scaled.
        program: function that takes each program and its name, and returns the one to call.
    """

    function: StageFunction
    fetch: Fetch
    gradient_factor: float
    activation_checkpointing: bool
    transform: Transform
    loss_scaling: LossScaling | None = None
    program: Callable[[str, PyTree], PyTree] = lambda _, program: program

    def __post_init__(self) -> None:
        program = self.program
        self.run_forward = program("forward", jax.jit(self._forward))
        self.backward = program("backward", jax.jit(self._backward, donate_argnums=(1, 2)))
        self.backward_input = program("backward input", jax.jit(self._backward_input))
        self.backward_weights = program(
            "backward weights", jax.jit(self._backward_weights, donate_argnums=(2, 3))
        )
        self._stage_trace: StageTrace | None = None

    def forward(
        self, trainable: Arrays, received: Received, inputs: StageInputs, scaled: bool
    ) -> ForwardResult:
        """Run the forward pass; `scaled` is whether the backward pass will have a loss scale."""
        if self._stage_trace is None:
            self._stage_trace = self._trace_stage(trainable, received, inputs, scaled)
        traced = self._stage_trace
        results, computed, _ = self.run_forward(trainable, received, inputs)
        outputs, (non_trainable, metrics, loss) = results
        if self.activation_checkpointing:
            return ForwardResult(outputs, (received, inputs), non_trainable, loss, metrics)
        # Without the data, which is only a position here; residuals have it as a result of F.
        given = [*received, *jax.tree.leaves(_data_last(inputs)[:3])]
        values = dict(zip([*traced.inputs[1], *traced.inputs[2]], given, strict=False))
        returned = zip(traced.results, outputs, strict=False)
        values |= {var: x for var, x in returned if isinstance(var, Var)}
        residuals = computed, [values[var] for var in traced.existing]
        return ForwardResult(outputs, residuals, non_trainable, loss, metrics)

    @property
    def residual_bytes(self) -> int:
        """Bytes that a micro-batch keeps on the device from its forward to its backward pass."""
        traced = self._traced
        received = traced.inputs[1]
        kept = received if self.activation_checkpointing else [*traced.computed, *traced.existing]
        return tree_bytes([var.aval for var in kept])

    # Tracing.

    def _trace_stage(
        self, trainable: Arrays, received: Received, inputs: StageInputs, scaled: bool
    ) -> StageTrace:
        inputs = jax.eval_shape(lambda inputs: inputs.with_batch(self.fetch), inputs)
        function = self.transform(self.function)
        (outputs, _), _ = jax.eval_shape(function, trainable, received, inputs)
        output_gradients = [output for output in outputs if has_gradient(output)]
        loss_scale = jax.ShapeDtypeStruct((), jnp.float32) if scaled else None
        groups = (trainable, received, _data_last(inputs), output_gradients, loss_scale)
        leaves, structure = jax.tree.flatten(groups)
        result_structure: jax.tree_util.PyTreeDef | None = None

        def flat(*values: jax.Array) -> list[jax.Array]:
            nonlocal result_structure
            results = self._forward_backward(*jax.tree.unflatten(structure, values))
            found, result_structure = jax.tree.flatten(results)
            return found

        trace = Trace.of(self.transform(flat), leaves)
        variables = _cut(trace.inputs, [len(jax.tree.leaves(group)) for group in groups])
        assert result_structure is not None
        of_forward, of_weights, of_received = result_structure.children()
        results, weight_gradients, received_gradients = _cut(
            trace.outputs, [part.num_leaves for part in (of_forward, of_weights, of_received)]
        )
        forward, _ = needed_for(results, trace.equations)
        sources = [*variables[1], *variables[2]]
        # Values of the forward pass that may be residuals. Values that depend only on weights are
        # excluded, and with activation checkpointing all values are: B recomputes them.
        available = set(sources)
        if not self.activation_checkpointing:
            available = depending_on(sources, forward)
        gradients = [*weight_gradients, *received_gradients]
        backward, used = needed_for(gradients, trace.equations, available)
        # F reads the micro-batch, so the micro-batch is also a result of F.
        batch_leaves = len(jax.tree.leaves(inputs.data))
        from_data = available.difference(sources)
        from_data |= set(variables[2][len(variables[2]) - batch_leaves :])
        returned = {atom for atom in results[: len(outputs)] if isinstance(atom, Var)}
        computed = [var for var in used if var in from_data and var not in returned]
        backward_input, _ = needed_for(received_gradients, backward, available)
        intermediate = {var for equation in backward_input for var in equation.outvars}
        backward_weights, read_by_weights = needed_for(
            weight_gradients, backward, available | intermediate
        )
        return StageTrace(
            trace=trace,
            inputs=variables,
            structure=of_forward,
            results=results,
            weight_gradients=weight_gradients,
            received_gradients=received_gradients,
            forward=forward,
            backward=backward,
            computed=computed,
            existing=[var for var in used if var not in set(computed)],
            backward_input=backward_input,
            backward_weights=backward_weights,
            shared=[var for var in read_by_weights if var in intermediate],
        )

    def _forward_backward(
        self,
        trainable: Arrays,
        received: Received,
        data_last: tuple,
        output_gradients: Arrays,
        loss_scale: jax.Array | None,
    ) -> PyTree:
        """Run forward and backward; integers have no gradient."""
        non_trainable, metrics, loss, data = data_last
        inputs = StageInputs(non_trainable, data, metrics, loss)

        def compute(trainable: Arrays, differentiable: Arrays) -> PyTree:
            values = iter(differentiable)
            full = tuple(next(values) if has_gradient(x) else x for x in received)
            (outputs, own), carried = self.function(trainable, full, inputs)
            return ([x for x in outputs if has_gradient(x)], own), (outputs, carried)

        differentiable = [x for x in received if has_gradient(x)]
        (_, own), pullback, results = jax.vjp(compute, trainable, differentiable, has_aux=True)
        loss_gradient = jnp.ones_like(own) if loss_scale is None else loss_scale
        return results, *pullback((output_gradients, loss_gradient))

    # Programs.

    @property
    def _traced(self) -> StageTrace:
        assert self._stage_trace is not None, "the forward pass runs first"
        return self._stage_trace

    def _input_values(self, *groups: PyTree) -> Values:
        """Return the values of the first groups of the trace's inputs."""
        traced = self._traced
        values = dict(traced.trace.constants)
        for variables, group in zip(traced.inputs, groups, strict=False):
            values.update(zip(variables, jax.tree.leaves(group), strict=True))
        return values

    def _forward(
        self, trainable: Arrays, received: Received, inputs: StageInputs
    ) -> tuple[PyTree, Arrays, jax.Array]:
        traced = self._traced
        data_last = _data_last(inputs.with_batch(self.fetch))
        values = self._input_values(trainable, received, data_last)
        evaluate(traced.forward, values)
        results = [read(atom, values) for atom in traced.results]
        computed = [] if self.activation_checkpointing else [values[var] for var in traced.computed]
        work = dummy_work((trainable, received, inputs))
        return jax.tree.unflatten(traced.structure, results), computed, work

    def _backward_values(self, inputs: BackwardInputs) -> Values:
        """Return the values from which the backward pass begins."""
        traced, (trainable, residuals, gradients, loss_scale) = self._traced, inputs
        if self.activation_checkpointing:
            received, stage_inputs = residuals
            data_last = _data_last(stage_inputs.with_batch(self.fetch))
            values = self._input_values(trainable, received, data_last)
        else:
            values = self._input_values(trainable)
            values.update(zip(traced.computed, residuals[0], strict=True))
            values.update(zip(traced.existing, residuals[1], strict=True))
        output_gradients = [sum(sent[1:], sent[0]) for sent in gradients if sent]
        given = jax.tree.leaves((output_gradients, loss_scale))
        values.update(zip([*traced.inputs[3], *traced.inputs[4]], given, strict=True))
        return values

    def _backward(
        self, inputs: BackwardInputs, accumulators: Arrays, counts: GradientCounts
    ) -> tuple[Arrays, Arrays, GradientCounts, jax.Array]:
        values = self._backward_values(inputs)
        evaluate(self._traced.backward, values)
        received = self._received_gradients(values)
        return received, *self._accumulate(values, accumulators, counts), _done()

    def _backward_input(self, inputs: BackwardInputs) -> tuple[Arrays, Arrays, jax.Array]:
        values = self._backward_values(inputs)
        evaluate(self._traced.backward_input, values)
        shared = [values[var] for var in self._traced.shared]
        return self._received_gradients(values), shared, _done()

    def _backward_weights(
        self, inputs: BackwardInputs, shared: Arrays, accumulators: Arrays, counts: GradientCounts
    ) -> tuple[Arrays, GradientCounts, jax.Array]:
        values = self._backward_values(inputs)
        values.update(zip(self._traced.shared, shared, strict=True))
        evaluate(self._traced.backward_weights, values)
        return *self._accumulate(values, accumulators, counts), _done()

    def _received_gradients(self, values: Values) -> Arrays:
        return [read(atom, values) for atom in self._traced.received_gradients]

    def _accumulate(
        self, values: Values, accumulators: Arrays, counts: GradientCounts
    ) -> tuple[Arrays, GradientCounts]:
        gradients = [read(atom, values) for atom in self._traced.weight_gradients]
        pairs = zip(accumulators, gradients, strict=True)
        added = [
            total + gradient.astype(total.dtype) * self.gradient_factor for total, gradient in pairs
        ]
        if self.loss_scaling is None:
            return added, counts
        before = self.loss_scaling.begin()._replace(large=counts[0], counted=counts[1])
        after = self.loss_scaling.count(before, self.loss_scaling.select(gradients, []))
        return added, (after.large, after.counted)


def _done() -> jax.Array:
    """Return a scalar that is ready when the program that returns it has ended.

    The program's other results may be donated to a later program before the host waits for them.
    """
    return jnp.zeros(())


def _data_last(inputs: StageInputs) -> tuple:
    """Return the inputs with the data last; outside of F, the data is only a position."""
    return inputs.non_trainable, inputs.metrics, inputs.loss, inputs.data


def _cut(values: Sequence[Atom], sizes: Sequence[int]) -> list[list[Atom]]:
    parts, start = [], 0
    for size in sizes:
        parts.append(list(values[start : start + size]))
        start += size
    return parts
