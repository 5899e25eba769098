import convoy  # noqa: F401 - before keras
import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import cpu
from convoy.cpu.dispatch import dummy_work
from convoy.serving.forward_pass import ForwardPass
from tests import parts

pytestmark = parts.needs("the native CPU kernels")


def test_a_program_of_kernels_alone_counts_as_work():
    """XLA runs what it takes for next to nothing in the thread that calls it."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(2)]
    forward = ForwardPass(keras.Sequential([keras.Input((8, 8, 8)), *layers]), 2, cpu.fuse)
    shapes = forward.constants, *forward.input_shapes

    def working(constants, x):
        return forward.run(constants, x), dummy_work((constants, x))

    def operations(function):
        return jax.jit(function).lower(*shapes).compile().cost_analysis()["flops"]

    assert operations(forward.run) < 1000
    assert operations(working) > 1000


def test_any_argument_will_do():
    for arguments in ([jnp.zeros((0, 3)), np.int32(3)], {"x": jnp.array([3.0, np.nan])}):
        assert float(jax.jit(dummy_work)(arguments)) == 16 * 9
