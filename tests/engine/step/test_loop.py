import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.engine.state import State
from convoy.engine.step.loop import collect, loop

SOURCE = jnp.arange(10.0)


def state(value=0.0):
    return State([jnp.float32(value)], [jnp.int32(0)], [], [])


def span(first, end):
    """Return the positions of steps as a program takes them."""
    return np.array((first, end), np.int32)


def fetch(source, index):
    return source[index]


def add(state, position):
    """Add up batches and count them."""
    batch = fetch(*position)
    new = State([state.trainable[0] + batch], [state.non_trainable[0] + 1], [], [])
    return new, {"last": batch}


@pytest.mark.parametrize("count", [0, 1, 4, 10])
def test_runs_as_many_steps_as_it_is_told(count):
    new, _ = jax.jit(loop(add))(state(), SOURCE, span(0, count))
    assert new.trainable[0] == float(np.arange(count).sum())
    assert new.non_trainable[0] == count


def test_runs_the_steps_of_a_part():
    program = jax.jit(loop(add))
    new, _ = program(state(), SOURCE, span(0, 4))
    new, logs = program(new, SOURCE, span(4, 6))
    assert new.trainable[0] == float(np.arange(6).sum())
    assert logs == {"last": 5.0}


def test_returns_the_logs_of_the_last_step():
    _, logs = jax.jit(loop(add))(state(), SOURCE, span(0, 3))
    assert logs == {"last": 2.0}


@pytest.mark.parametrize("repeat", [loop, lambda step: collect(step, output_steps=10)])
def test_a_step_is_traced_once_for_any_number_of_steps(repeat):
    traces = []

    def counted(state, position):
        traces.append(position)
        return add(state, position)

    program = jax.jit(repeat(counted))
    program(state(), SOURCE, span(0, 3))
    program(state(), SOURCE, span(0, 7))
    assert len(traces) == 1


def test_the_steps_are_a_loop_in_the_program_and_not_copies():
    def text(count):
        return (
            jax.jit(lambda s, b: loop(add)(s, b, span(0, count))).lower(state(), SOURCE).as_text()
        )

    assert len(text(1000)) == len(text(1)) + len("1000") - len("1")


def test_keeps_the_types_of_the_state():
    def widen(state, position):
        batch = fetch(*position)
        return state._replace(trainable=[state.trainable[0].astype("float32") + batch]), {}

    half = State([jnp.bfloat16(1)], [jnp.int32(0)], [], [])
    new, _ = jax.jit(loop(widen))(half, SOURCE, span(0, 2))
    assert new.trainable[0].dtype == jnp.bfloat16


def test_collects_what_every_step_returns():
    def outputs(state, position):
        batch = fetch(*position)
        return add(state, position)[0], {"a": batch * jnp.ones(2), "b": batch.astype("int32")}

    new, kept = jax.jit(collect(outputs, output_steps=5))(state(), SOURCE, span(0, 3))
    np.testing.assert_array_equal(kept["a"][:3], [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(kept["b"][:3], [0, 1, 2])
    assert kept["a"].shape == (5, 2)
    assert new.trainable[0] == 3
