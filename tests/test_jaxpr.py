"""Functions as flat lists of equations."""

import jax
import jax.numpy as jnp
import numpy as np
from convoy.jaxpr import Trace, evaluate, needed_for, read

X = jax.ShapeDtypeStruct((4, 3), jnp.float32)
W = jax.ShapeDtypeStruct((3,), jnp.float32)


def names(equations):
    return [equation.primitive.name for equation in equations]


def run(trace, *arguments):
    values = trace.constants | dict(zip(trace.inputs, arguments, strict=True))
    evaluate(trace.equations, values)
    return [read(atom, values) for atom in trace.outputs]


def test_nested_functions_are_written_out():
    @jax.jit
    def inner(x):
        return jax.nn.relu(jnp.sin(x))

    trace = Trace.of(lambda x: [inner(x) + 1], [X])
    assert names(trace.equations) == ["sin", "max", "add"]
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(run(trace, x)[0], np.maximum(np.sin(x), 0) + 1, rtol=1e-6)


def test_loops_stay_whole():
    def loop(x):
        return [jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x)]

    trace = Trace.of(loop, [X])
    x = np.ones((4, 3), np.float32)
    np.testing.assert_allclose(run(trace, x)[0], np.sin(np.sin(np.sin(x))), rtol=1e-6)


def test_what_nobody_reads_is_dropped():
    def function(x):
        jnp.cos(x)
        return [jnp.sin(x)]

    assert names(Trace.of(function, [X]).equations) == ["sin"]


def test_what_follows_from_some_inputs():
    trace = Trace.of(lambda x, w: [x * jnp.exp(w)[None]], [X, W])
    made = trace.made_from(trace.inputs[1:])
    late, needed = needed_for(trace.outputs, trace.equations, made)
    assert names(late) == ["mul"]
    early, sources = needed_for(needed, trace.equations, trace.inputs)
    assert names(early)[0] == "exp"
    assert sources == [trace.inputs[1]]


def test_what_is_much_larger_than_its_source_is_not_kept():
    def function(x, w):
        return [jnp.broadcast_to(jnp.exp(w), (1000, 1000, 3)) + x[None, :1]]

    trace = Trace.of(function, [X, W])
    late, needed = needed_for(trace.outputs, trace.equations, trace.made_from(trace.inputs[1:]))
    assert "broadcast_in_dim" in names(late)
    assert [var.aval.shape for var in needed] == [(3,)]


def test_effects_are_seen():
    def function(x):
        jax.debug.print("{}", x)
        return [x]

    assert Trace.of(function, [X]).has_effects
    assert not Trace.of(lambda x: [x], [X]).has_effects
