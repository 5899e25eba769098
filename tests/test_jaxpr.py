"""Functions as flat lists of equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.jaxpr import Trace, count_flops, depending_on, evaluate, needed_for, read
from jax.sharding import Mesh, PartitionSpec

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


def test_values_that_depend_on_an_input_include_the_input():
    trace = Trace.of(lambda x, w: [jnp.sin(x) * jnp.cos(w)[None], jnp.cos(w)], [X, W])
    of_x = depending_on(trace.inputs[:1], trace.equations)
    assert trace.inputs[0] in of_x
    assert [output in of_x for output in trace.outputs] == [True, False]


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


IMAGES, KERNEL = (4, 8, 8, 3), (3, 3, 3, 16)
ONE = 2 * 4 * 8 * 8 * 16 * 3 * 3 * 3


def convolve(x, w, stride=1):
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def count(function, *shapes, devices=1):
    values = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return count_flops(jax.make_jaxpr(function)(*values), devices)


def test_a_convolution_and_its_gradients_are_three_times_its_products():
    assert count(convolve, IMAGES, KERNEL) == ONE
    both = jax.grad(lambda x, w: convolve(x, w).sum(), argnums=(0, 1))
    assert count(both, IMAGES, KERNEL) == 3 * ONE


@pytest.mark.parametrize("argument", [0, 1])
def test_the_zeros_of_a_strided_gradient_are_not_counted(argument):
    gradient = jax.grad(lambda x, w: convolve(x, w, stride=2).sum(), argnums=argument)
    assert count(gradient, IMAGES, KERNEL) == (1 + 1) * ONE / 4


def test_a_matrix_product_in_a_loop_counts_as_often_as_it_runs():
    def looped(x, w):
        return jax.lax.fori_loop(0, 5, lambda _, y: y @ w, x)

    assert count(looped, (4, 8), (8, 8)) == 5 * 2 * 4 * 8 * 8


def test_a_loop_of_unknown_length_counts_once():
    def looped(x, w, steps):
        return jax.lax.fori_loop(0, steps.astype(int), lambda _, y: y @ w, x)

    assert count(looped, (4, 8), (8, 8), ()) == 2 * 4 * 8 * 8


def test_the_larger_branch_counts():
    def branched(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w)

    assert count(branched, (4, 8), (8, 8)) == 2 * 2 * 4 * 8 * 8


def test_work_is_that_of_one_device():
    mesh = Mesh(np.array(jax.devices()[:2]), ("replica",))
    sharded = PartitionSpec("replica")
    divided = jax.shard_map(
        jnp.matmul, mesh=mesh, in_specs=(sharded, PartitionSpec()), out_specs=sharded
    )
    assert count(divided, (4, 8), (8, 8), devices=2) == 2 * 2 * 8 * 8
    assert count(jnp.matmul, (4, 8), (8, 8), devices=2) == 2 * 2 * 8 * 8
