"""A sum by channel in 16 bits is the exact sum, rounded once, whatever surrounds it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy import cpu
from convoy.cpu import kernel_dtypes, lowering
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import export, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .reference import HALF_TYPES, SMALLEST_NORMAL, UNIT_ROUNDOFF, jax_alone, normal

pytestmark = [pytest.mark.usefixtures("native"), pytest.mark.integration]

TARGET = "convoy_channel_sums"
# Numbers that the kernel adds in float32, before it goes on in float64; and two conversions.
ROUNDINGS = 32 + 2

IN_HALF_TYPES = pytest.mark.parametrize("dtype", HALF_TYPES)

SHAPES = [
    (2, 1),
    (3, 40, 40, 1),  # a single channel, which JAX reduces with the other axes
    (5, 3),  # after a dense layer
    (4, 5, 6, 3),  # fewer channels than a vector register holds
    (2, 7, 7, 64),
    (3, 9, 9, 257),  # a row longer than a tile, and odd
    (2, 3, 4, 5, 6),  # volumes
    (9, 33, 31, 16),  # more rows than fit the cache, not a multiple of anything
    (2, 5, 5, 2100),
]


def bias_gradient(x, bias, dy):
    """Return the gradient of a bias that is added as Keras adds it."""

    def add(bias):
        return x + jnp.reshape(bias, (1,) * (x.ndim - 1) + bias.shape)

    return jax.vjp(add, bias)[1](dy)[0]


def sums(dy):
    return bias_gradient(jnp.zeros_like(dy), jnp.zeros(dy.shape[-1:], dy.dtype), dy)


def compiled_sums(function=sums):
    return jax.jit(lambda *arguments: function(*arguments))


def assert_rounded_sum(got, dy):
    """Assert that `got` differs from the exact sum by one rounding, and by those of float32."""
    assert got.dtype == dy.dtype
    name = got.dtype.name
    numbers = np.asarray(dy, np.float64).reshape(-1, dy.shape[-1])
    exact = numbers.sum(0)
    error = UNIT_ROUNDOFF[name] * np.maximum(np.abs(exact), SMALLEST_NORMAL[name])
    error += ROUNDINGS * 2.0**-24 * np.abs(numbers).sum(0)
    np.testing.assert_array_less(np.abs(np.asarray(got, np.float64) - exact), error)


def is_native(function, *arguments):
    return TARGET in jax.jit(lambda *a: function(*a)).lower(*arguments).as_text()


@IN_HALF_TYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_a_bias_gradient_is_rounded_once(dtype, shape):
    dy = jnp.asarray(normal(shape), dtype)
    assert is_native(sums, dy)
    assert_rounded_sum(compiled_sums()(dy), dy)


@st.composite
def shapes(draw):
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    return *sizes, draw(st.sampled_from([1, 3, 16, 31, 64, 255, 256, 300]))


@IN_HALF_TYPES
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(shape=shapes(), offset=st.sampled_from([0.0, 0.25]))
def test_sums_of_any_shape_are_rounded_once(dtype, shape, offset):
    dy = jnp.asarray(normal(shape) / 8 + offset, dtype)
    assert_rounded_sum(compiled_sums()(dy), dy)


@IN_HALF_TYPES
@pytest.mark.parametrize("shape", [(200, 7), (3, 5, 13, 64), (2, 3, 4, 5, 300)])
def test_sums_that_need_no_rounding_are_those_of_xla(dtype, shape):
    # No partial sum exceeds 256, up to which bfloat16 holds all integers.
    dy = jnp.asarray(np.random.default_rng(0).integers(-1, 2, shape), dtype)
    with jax_alone():
        expected = compiled_sums()(dy)
    np.testing.assert_array_equal(compiled_sums()(dy), expected)


@IN_HALF_TYPES
def test_a_long_sum_does_not_stop_growing(dtype):
    # Above 256 the sum of bfloat16 and 1 is rounded to bfloat16, above 2048 that of float16.
    got = compiled_sums()(jnp.ones((16, 16, 16, 5), dtype))
    np.testing.assert_array_equal(got, np.full(5, 4096))


@IN_HALF_TYPES
def test_a_sum_over_all_axes_has_one_channel(dtype):
    x = jnp.asarray(normal((9, 11, 64)), dtype)

    def total(x):
        return lax.reduce(x, x.dtype.type(0), lax.add, (0, 1, 2))

    assert is_native(total, x)
    assert_rounded_sum(compiled_sums(total)(x).reshape(1), x.reshape(-1, 1))


@IN_HALF_TYPES
def test_infinite_and_undefined_numbers_stay_in_their_channel(dtype):
    largest = jnp.finfo(dtype).max
    dy = jnp.ones((40, 6), dtype).at[3, 1].set(jnp.nan).at[7, 2].set(-jnp.inf)
    dy = dy.at[:2, 4].set(largest)
    got = np.asarray(compiled_sums()(dy), np.float32)
    np.testing.assert_array_equal(got, [40, np.nan, -np.inf, 40, np.inf, 40])


@pytest.mark.parametrize("dtype", kernel_dtypes.ALL_FLOATS)
def test_the_native_kernel_takes_every_type(dtype):
    dy = jnp.asarray(np.random.default_rng(0).integers(-1, 2, (3, 5, 13, 64)), dtype)
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((64,), dtype))
    np.testing.assert_array_equal(call(dy, threads=2), np.asarray(dy, np.float32).sum((0, 1, 2)))


DY = normal((4, 6, 6, 8))


@IN_HALF_TYPES
def test_in_a_loop_on_the_device(dtype):
    many = jnp.asarray(np.stack([DY, DY + 1, DY - 1]), dtype)

    def scan(many):
        return lax.scan(lambda count, dy: (count + 1, sums(dy)), 0, many)[1]

    assert is_native(scan, many)
    for got, dy in zip(compiled_sums(scan)(many), many, strict=True):
        assert_rounded_sum(got, dy)


@IN_HALF_TYPES
def test_in_shard_map_on_each_device(dtype):
    devices = jax.devices("cpu")
    mesh = Mesh(np.array(devices), ("replica",))
    many = jnp.asarray(np.concatenate([DY + i for i in range(len(devices))]), dtype)
    biases = jnp.zeros(len(devices) * DY.shape[-1], dtype)

    def replica(dy, bias):
        return bias_gradient(dy, bias, dy)

    sharded = jax.shard_map(replica, mesh=mesh, in_specs=P("replica"), out_specs=P("replica"))
    assert is_native(sharded, many, biases)
    got = compiled_sums(sharded)(many, biases).reshape(len(devices), -1)
    for own, dy in zip(got, jnp.split(many, len(devices)), strict=True):
        assert_rounded_sum(own, dy)


@IN_HALF_TYPES
def test_under_activation_checkpointing_and_a_second_derivative(dtype):
    dy = jnp.asarray(DY, dtype)
    bias = jnp.zeros((1, 1, 1, dy.shape[-1]), dtype)

    def loss(bias, dy):
        return jnp.sum(((dy + bias) * dy).astype(np.float32))

    gradient = jax.grad(jax.checkpoint(loss))
    assert is_native(gradient, bias, dy)
    assert_rounded_sum(compiled_sums(gradient)(bias, dy).reshape(-1), dy)
    # The sum is linear, so its gradient is the cotangent in every row.
    back = jax.grad(lambda dy: jnp.sum(sums(dy).astype(np.float32)))(dy)
    np.testing.assert_array_equal(back, np.ones_like(back))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (sums, "float32"),
        (lambda x: lax.reduce(x, 0, lax.add, (0, 1, 2)), "int32"),
        (jax.vmap(sums), "bfloat16"),
        (lambda x: lax.reduce(x, x.dtype.type(0), lax.add, (0, 2, 3)), "bfloat16"),
        (lambda x: lax.reduce(x, x.dtype.type(0), lax.add, (0, 1)), "bfloat16"),
        (lambda x: sums(x[:0]), "bfloat16"),
    ],
    ids=["float32", "int32", "vmap", "channels first", "two channel axes", "empty"],
)
def test_other_sums_are_left_to_xla(function, dtype):
    x = jnp.asarray(np.random.default_rng(0).integers(-1, 2, DY.shape), dtype)
    assert not is_native(function, x)
    with jax_alone():
        expected = compiled_sums(function)(x)
    np.testing.assert_array_equal(compiled_sums(function)(x), expected)


def test_an_array_divided_by_jit_is_left_to_xla():
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("batch",))
    dy = jax.device_put(jnp.asarray(DY, "bfloat16"), NamedSharding(mesh, P("batch")))
    assert not is_native(sums, dy)


def test_an_exported_program_is_portable():
    dy = jax.ShapeDtypeStruct(DY.shape, jnp.bfloat16)
    assert TARGET not in export.export(jax.jit(sums))(dy).mlir_module()


def test_they_are_counted():
    lowering.reset_counts()
    jax.jit(lambda dy: sums(dy)).lower(jnp.asarray(DY, "bfloat16"))
    assert cpu.status().lowered == {kernel_dtypes.CHANNEL_SUMS: 1}
