"""The device loop: many steps in one device call."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from convoy.engine.data.placement import tree_zeros
from convoy.engine.state import State, like
from convoy.engine.step.step import ForwardStep, Position, Step
from convoy.types import Logs, PyTree, Shapes
from jax.extend.core import jaxpr_as_fun

# The host starts one program for many steps, instead of one program for each:
#
#     host      | call |                         | callbacks | call |
#     device           | step 0 | step 1 | ... |               | step 0 | ...
#     state            s0 -----> s1 ----> s2 ... sN
#
# The state is the carry of the loop. Its buffers are donated to the program, so weights and
# optimizer state exist once. The first step and the end are arguments of the compiled program, not
# a part of it: the incomplete last call of an epoch, any other `steps_per_execution`, and the parts
# of a long call (`progress.py`) run in the same program. For the same reason it is a `fori_loop`,
# not a `scan` over stacked inputs: each step takes its batch from the source by its index.


def loop(step: Step) -> Callable[[State, PyTree, jax.Array], tuple[State, Logs]]:
    """Repeat `step` on the device over some positions of a source.

    Returns:
        A function of the state, the source and the span of positions, which is the first one and
        the one after the last; it returns the new state and the logs of the last step.
    """

    def run(state: State, source: PyTree, span: jax.Array) -> tuple[State, Logs]:
        traced, shapes = _trace(step, state, source)

        def body(index: jax.Array, carry: tuple[State, Logs]) -> tuple[State, Logs]:
            state, _ = carry
            new_state, logs = traced(state, (source, index))
            return like(new_state, state), like(logs, first)

        # A carry needs an initial value, which no step reads.
        first = tree_zeros(shapes)
        return jax.lax.fori_loop(span[0], span[1], body, (state, first))

    return run


def collect(
    step: ForwardStep, output_steps: int
) -> Callable[[State, PyTree, jax.Array], tuple[State, PyTree]]:
    """Repeat `step` on the device and keep the outputs of every step.

    Args:
        step: a forward pass.
        output_steps: number of steps for which memory is reserved; outputs outside of the span are
            zeros.
    """

    def run(state: State, source: PyTree, span: jax.Array) -> tuple[State, PyTree]:
        traced, shapes = _trace(step, state, source)

        def body(index: jax.Array, carry: tuple[State, PyTree]) -> tuple[State, PyTree]:
            state, kept = carry
            new_state, outputs = traced(state, (source, index))
            # XLA updates the carry in place: row `index` of each output.
            kept = jax.tree.map(
                lambda all_steps, one: jax.lax.dynamic_update_index_in_dim(
                    all_steps, one.astype(all_steps.dtype), index, axis=0
                ),
                kept,
                outputs,
            )
            return like(new_state, state), kept

        kept = jax.tree.map(lambda leaf: jnp.zeros((output_steps, *leaf.shape), leaf.dtype), shapes)
        return jax.lax.fori_loop(span[0], span[1], body, (state, kept))

    return run


def _trace(
    step: Step | ForwardStep, state: State, source: PyTree
) -> tuple[Step | ForwardStep, Shapes]:
    """Trace a step once, for the shapes that the loop's carry needs and for its body.

    Returns:
        The traced step, and the shapes of what it returns in addition to the state.
    """
    trace = jax.make_jaxpr(step, return_shape=True)
    jaxpr, shapes = trace(state, (source, jnp.int32(0)))
    structure = jax.tree.structure(shapes)

    def traced(state: State, position: Position) -> tuple[State, PyTree]:
        outcome = jaxpr_as_fun(jaxpr)(*jax.tree.leaves((state, position)))
        return jax.tree.unflatten(structure, outcome)

    return traced, shapes[1]
