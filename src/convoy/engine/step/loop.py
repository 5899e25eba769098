"""The device loop: many steps in one device call."""

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from convoy.engine.data.placement import tree_zeros
from convoy.engine.state import State, like
from convoy.engine.step.step import ForwardStep, Step
from convoy.types import Logs, PyTree, Shapes

# The host starts one program for many steps, instead of one program for each:
#
#     host      | call |                         | callbacks | call |
#     device           | step 0 | step 1 | ... |               | step 0 | ...
#     state            s0 -----> s1 ----> s2 ... sN
#
# The state is the carry of the loop. Its buffers are donated to the program, so weights and
# optimizer state exist once. The number of steps is an argument of the compiled program, not a
# part of it: the incomplete last call of an epoch, and any other `steps_per_execution`, run in the
# same program. For the same reason it is a `fori_loop`, not a `scan` over stacked inputs: each
# step takes its batch from the source by its index.


def loop(step: Step) -> Callable[[State, PyTree, jax.Array], tuple[State, Logs]]:
    """Repeat `step` on the device over the first `steps` positions of a source.

    Returns:
        A function of the state, the source and the number of steps, which returns the new state
        and the logs of the last step.
    """

    def run(state: State, source: PyTree, steps: jax.Array) -> tuple[State, Logs]:
        def body(index: jax.Array, carry: tuple[State, Logs]) -> tuple[State, Logs]:
            state, _ = carry
            new_state, logs = step(state, (source, index))
            return like(new_state, state), like(logs, first)

        # A carry needs a value before the first step; no step reads it.
        first = tree_zeros(_outcome_shapes(step, state, source))
        return jax.lax.fori_loop(0, steps, body, (state, first))

    return run


def collect(
    step: ForwardStep, max_steps: int
) -> Callable[[State, PyTree, jax.Array], tuple[State, PyTree]]:
    """Repeat `step` on the device and keep the outputs of every step.

    Args:
        step: a forward pass.
        max_steps: steps for whose outputs memory is reserved; outputs beyond `steps` are zeros.
    """

    def run(state: State, source: PyTree, steps: jax.Array) -> tuple[State, PyTree]:
        def body(index: jax.Array, carry: tuple[State, PyTree]) -> tuple[State, PyTree]:
            state, kept = carry
            new_state, outputs = step(state, (source, index))
            # XLA updates the carry in place: row `index` of each output.
            kept = jax.tree.map(
                lambda all_steps, one: jax.lax.dynamic_update_index_in_dim(
                    all_steps, one.astype(all_steps.dtype), index, axis=0
                ),
                kept,
                outputs,
            )
            return like(new_state, state), kept

        outputs = _outcome_shapes(step, state, source)
        kept = jax.tree.map(lambda leaf: jnp.zeros((max_steps, *leaf.shape), leaf.dtype), outputs)
        return jax.lax.fori_loop(0, steps, body, (state, kept))

    return run


def _outcome_shapes(step: Step | ForwardStep, state: State, source: PyTree) -> Shapes:
    """Return the shapes of what a step returns beside the state."""
    with trace_for_shapes():
        _, outcome = jax.eval_shape(lambda: step(state, (source, jnp.int32(0))))
    return outcome


@contextlib.contextmanager
def trace_for_shapes() -> Iterator[None]:
    """Trace a step without effects, before the trace that is compiled.

    Layers should warn once, and what they draw from Python's generator while they are traced should
    be what stock Keras draws.
    """
    drawn_from = random.getstate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    random.setstate(drawn_from)
