import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.compile.work import count_flops
from jax.sharding import Mesh, PartitionSpec

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
