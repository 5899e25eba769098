"""The kernels hold inside everything JAX does to a program."""

import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy import cpu
from convoy.cpu import lowering
from convoy.cpu.library import TARGETS
from jax import export, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .reference import HALF_TYPES, assert_close, compare, jax_alone, normal, value_and_gradients

pytestmark = pytest.mark.integration


def network(x, weights):
    """Two convolutions and a pooling between them, as a loss."""
    first, second = weights
    layout = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=layout)
    zero, lowest = x.dtype.type(0), x.dtype.type(-np.inf)
    window = (1, 2, 2, 1)
    x = lax.reduce_window(lax.max(x, zero), lowest, lax.max, window, window, "VALID")
    x = lax.conv_general_dilated(x, second, (2, 2), "SAME", dimension_numbers=layout)
    return jnp.mean(jnp.sin(x))


X = normal((4, 8, 8, 3))
WEIGHTS = (normal((3, 3, 3, 8), 1), normal((3, 3, 8, 4), 2))

SLOW_HALF_TYPES = [pytest.param(dtype, marks=pytest.mark.slow) for dtype in HALF_TYPES]
IN_ALL_TYPES = pytest.mark.parametrize("dtype", ["float32", *SLOW_HALF_TYPES])


def cast(dtype):
    """Return `X` and `WEIGHTS` in a type."""
    return jax.tree.map(lambda array: jnp.asarray(array, dtype), (X, WEIGHTS))


@pytest.mark.parametrize("dtype", ["float32", *HALF_TYPES])
def test_grad(dtype):
    compare(jax.grad(network, argnums=(0, 1)), *cast(dtype))


@IN_ALL_TYPES
def test_training_loop_on_the_device(dtype):
    x, weights = cast(dtype)

    def step(weights, x):
        loss, gradients = jax.value_and_grad(network, argnums=1)(x, weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss

    compare(lambda w, xs: lax.scan(step, w, xs), weights, jnp.stack([x, x + 1, x - 1]))
    compare(lambda w: lax.fori_loop(0, 3, lambda _, w: step(w, x)[0], w), weights)


@IN_ALL_TYPES
def test_vmap_over_inputs_weights_and_both(dtype):
    x, weights = cast(dtype)
    many = jax.tree.map(lambda w: jnp.stack([w, 2 * w, -w]), weights)
    xs = jnp.stack([x, x + 1, x - 1])
    gradient = jax.grad(network, argnums=(0, 1))
    compare(jax.vmap(gradient, (0, None)), xs, weights)
    compare(jax.vmap(gradient, (None, 0)), x, many)
    compare(jax.vmap(gradient), xs, many)


@IN_ALL_TYPES
def test_remat(dtype):
    compare(jax.grad(jax.checkpoint(network), argnums=(0, 1)), *cast(dtype))


def test_second_derivative_and_forward_mode():
    def along(x):
        return jax.jvp(lambda x: network(x, WEIGHTS), (x,), (jnp.ones_like(x),))[1]

    compare(along, X)
    compare(jax.grad(along), X)


@IN_ALL_TYPES
def test_shard_map_runs_the_kernels_on_each_device(native, dtype):
    devices = jax.devices("cpu")
    mesh = Mesh(np.array(devices), ("replica",))
    x, weights = cast(dtype)
    xs = jnp.concatenate([x] * len(devices))

    def replica(x, weights):
        gradients = jax.grad(network, argnums=1)(x, weights)
        return jax.tree.map(lambda g: lax.pmean(g, "replica"), gradients)

    sharded = jax.shard_map(replica, mesh=mesh, in_specs=(P("replica"), P()), out_specs=P())
    lowering.reset_counts()
    compare(sharded, xs, weights)
    assert any("oneDNN" in kernel for kernel in cpu.status().lowered)


def test_an_array_divided_by_jit_is_left_to_xla():
    # XLA would gather a foreign call's operands on every device.
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("batch",))
    xs = jax.device_put(X, NamedSharding(mesh, P("batch")))
    lowering.reset_counts()
    gradients = jax.jit(jax.grad(network, argnums=1))(xs, WEIGHTS)
    assert not any("oneDNN" in kernel for kernel in cpu.status().lowered)
    with jax_alone():
        expected = jax.jit(lambda x, w: jax.grad(network, argnums=1)(x, w))(X, WEIGHTS)
    jax.tree.map(assert_close, gradients, expected)


def test_export_is_portable():
    exported = export.export(jax.jit(jax.grad(network)))(X, WEIGHTS)
    module = exported.mlir_module()
    assert not any(target in module for target in TARGETS)
    assert "custom_call" not in module
    assert_close(exported.call(X, WEIGHTS), jax.jit(jax.grad(network))(X, WEIGHTS))


def test_export_with_a_batch_of_unknown_size():
    (batch,) = export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((batch, *X.shape[1:]), np.float32)
    exported = export.export(jax.jit(network))(shape, WEIGHTS)
    assert_close(exported.call(X, WEIGHTS), network(X, WEIGHTS))


def test_many_threads_at_once():
    gradient = value_and_gradients(lambda x: network(x, WEIGHTS))
    inputs = [normal((1 + i % 3, 8 + i % 4, 8, 3), i) for i in range(16)]
    expected = [jax.jit(lambda x: gradient(x))(x) for x in inputs]
    results = [None] * len(inputs)
    compiled = jax.jit(gradient)

    def work(i):
        for _ in range(5):
            results[i] = compiled(inputs[i])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    jax.tree.map(assert_close, results, expected)


SEVERAL_DEVICES = """
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 3)
from convoy import cpu
from convoy.cpu import threads
cpu.enable()
from jax import lax
assert threads.per_device() == max(1, threads.cores() // 3)
convolve = jax.jit(lambda x, w: lax.conv_general_dilated(
    x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
x, w = np.ones((4, 16, 16, 8), np.float32), np.ones((3, 3, 8, 8), np.float32)
placed = [(jax.device_put(x, d), jax.device_put(w, d)) for d in jax.devices()]
for _ in range(20):
    results = [convolve(*pair) for pair in placed]
for result in results:
    np.testing.assert_array_equal(result, results[0])
    assert result[0, 8, 8, 0] == 72
"""


def test_several_devices_in_one_process():
    subprocess.run([sys.executable, "-c", SEVERAL_DEVICES], check=True, timeout=600)
