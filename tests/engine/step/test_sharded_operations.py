"""Convolutions and poolings of a global batch that XLA partitions run on each replica's samples."""

import re

import jax
import keras
import numpy as np
import pytest
from convoy import keras_bridge
from convoy.engine.data.placement import AXIS
from convoy.engine.step.sharded_operations import ShardedOperations
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BATCH = 6
OPERATIONS = {
    "conv": lambda x, kernel: keras.ops.conv(x, kernel, 2, "same"),
    "depthwise_conv": lambda x, kernel: keras.ops.depthwise_conv(x, kernel, padding="same"),
    "conv_transpose": lambda x, kernel: keras.ops.conv_transpose(x, kernel, 2),
    "separable_conv": lambda x, kernel: keras.ops.separable_conv(
        x, kernel, keras.ops.ones((1, 1, 32, 5))
    ),
    "max_pool": lambda x, kernel: keras.ops.max_pool(x, 2, 1),
    "average_pool": lambda x, kernel: keras.ops.average_pool(x, (3, 2), 2, "same"),
}


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:2]), (AXIS,))


def operands(batch=BATCH):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, 9, 9, 4)).astype("float32")
    return x, rng.normal(size=(3, 3, 4, 8)).astype("float32")


def value_and_gradients(name, mesh=None):
    """Return a function of the operands: a loss that no shard of the batch could give."""

    def loss(x, kernel):
        kernel = kernel.swapaxes(2, 3) if name == "conv_transpose" else kernel
        kernel = kernel.reshape(3, 3, 8, 4)[:, :, :4] if name == "conv_transpose" else kernel
        return keras.ops.std(OPERATIONS[name](x, kernel))

    def traced(x, kernel):
        if mesh is None:
            return jax.value_and_grad(loss, (0, 1))(x, kernel)
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(AXIS)))
        with keras_bridge.replaced_operations(ShardedOperations(mesh)):
            return jax.value_and_grad(loss, (0, 1))(x, kernel)

    return jax.jit(traced)


@pytest.mark.parametrize("name", OPERATIONS)
def test_value_and_gradients_are_those_of_one_device(mesh, name):
    expected = value_and_gradients(name)(*operands())
    actual = value_and_gradients(name, mesh)(*operands())
    for own, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(own), np.asarray(other), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["conv", "max_pool"])
def test_each_replica_computes_its_own_samples(mesh, name):
    text = value_and_gradients(name, mesh).lower(*operands()).compile().as_text()
    shapes = re.findall(r"f32\[(\d+),9,9,4\]", text)
    # The operand itself is an argument of the program, on every device; nothing else is whole.
    assert shapes.count(str(BATCH // 2)) > 1
    assert "all-gather" not in text.replace("all-gather(param", "")


def test_a_batch_that_cannot_be_divided_is_left_to_xla(mesh):
    x, kernel = operands(batch=5)
    expected = keras.ops.conv(x, kernel)
    with keras_bridge.replaced_operations(ShardedOperations(mesh)):
        actual = keras.ops.conv(x, kernel)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
