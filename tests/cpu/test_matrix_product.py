"""A matrix product in 16 bits is that of float32, rounded once, whatever its form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy import cpu
from convoy.cpu import kernel_dtypes, library, lowering
from convoy.cpu.matrix_product import Product, is_weight_gradient, recognise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import export, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .reference import compare, compare_in_half, normal, value_and_gradients

pytestmark = [pytest.mark.usefixtures("native"), pytest.mark.integration]

TARGET = "convoy_matrix_product"
DOTS = ((((1,), (0,)), ((), ())), (((2,), (1,)), ((0,), (0,))))
X, W = normal((32, 64)), normal((64, 40), seed=1)


@pytest.fixture(params=kernel_dtypes.INSTRUCTIONS)
def dtype(request):
    """Each type that this CPU has instructions for."""
    needed = kernel_dtypes.INSTRUCTIONS[request.param]
    if needed not in library.load().features:
        pytest.skip(f"this CPU has no instructions for {request.param}")
    return request.param


def is_native(function, *arguments):
    return TARGET in jax.jit(lambda *a: function(*a)).lower(*arguments).as_text()


def einsum(subscripts):
    return lambda *operands: jnp.einsum(subscripts, *operands)


FORMS = [
    ("ij,jk->ik", (130, 96), (96, 50)),  # a dense layer; sizes that vectors do not fill
    ("ij,kj->ik", (33, 64), (40, 64)),
    ("ji,jk->ik", (77, 24), (77, 40)),
    ("abcd,de->abce", (2, 5, 7, 32), (32, 48)),  # a dense layer on images
    ("abcd,cde->abe", (2, 40, 3, 32), (3, 32, 24)),  # the output of attention
    ("abd,dhk->abhk", (2, 17, 64), (64, 3, 32)),  # its queries
    ("btnh,bsnh->bnts", (4, 20, 3, 32), (4, 18, 3, 32)),  # its scores
    ("bnts,bsnh->btnh", (4, 3, 20, 18), (4, 18, 3, 32)),
    ("bij,bjk->bik", (7, 33, 16), (7, 16, 45)),  # a batch that threads do not divide evenly
    ("bij,bjk->bik", (1, 33, 64), (1, 64, 45)),
]


@pytest.mark.parametrize(("subscripts", "left", "right"), FORMS)
def test_a_product_and_its_gradients_are_rounded_once(dtype, subscripts, left, right):
    function = value_and_gradients(einsum(subscripts))
    operands = [normal(left) / 4, normal(right, seed=1) / 4]
    assert is_native(einsum(subscripts), *(jnp.asarray(each, dtype) for each in operands))
    compare_in_half(function, dtype, *operands)


sizes = st.integers(8, 70)


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    batch=st.lists(st.integers(1, 5), max_size=2),
    m=sizes,
    k=sizes,
    n=sizes,
    orders=st.tuples(st.permutations(range(2)), st.permutations(range(2))),
)
def test_products_of_any_form_are_rounded_once(dtype, batch, m, k, n, orders):
    left, right = [(m, k)[i] for i in orders[0]], [(k, n)[i] for i in orders[1]]
    axes = range(len(batch))
    numbers = (
        ((len(batch) + orders[0].index(1),), (len(batch) + orders[1].index(0),)),
        (tuple(axes), tuple(axes)),
    )
    compare_in_half(
        value_and_gradients(lambda a, b: lax.dot_general(a, b, numbers)),
        dtype,
        normal((*batch, *left)) / 4,
        normal((*batch, *right), seed=1) / 4,
    )


def test_a_long_sum_does_not_stop_growing(dtype):
    # Above 256 the sum of bfloat16 and 1 is rounded to bfloat16, above 2048 that of float16.
    ones = jnp.ones((4096, 16), dtype)
    assert is_native(einsum("ki,kj->ij"), ones, ones)
    got = jax.jit(lambda a, b: einsum("ki,kj->ij")(a, b))(ones, ones)
    np.testing.assert_array_equal(np.asarray(got, np.float32), 4096)


def test_infinite_and_undefined_numbers_stay_in_their_row(dtype):
    x = jnp.ones((32, 64), dtype).at[3, 1].set(jnp.nan).at[7, 2].set(-jnp.inf)
    got = np.asarray(jax.jit(jnp.dot)(x, jnp.ones((64, 32), dtype)), np.float32)
    assert np.isnan(got[3]).all()
    assert (got[7] == -np.inf).all()
    assert (np.delete(got, [3, 7], axis=0) == 64).all()


@pytest.mark.parametrize("rows", [5, 8])
def test_a_chain_of_few_rows_in_float32(rows):
    def chain(x, w, v):
        return jax.nn.relu(x @ w) @ v

    operands = normal((rows, 300)), normal((300, 200), seed=1), normal((200, 100), seed=2)
    assert is_native(chain, *operands)
    compare(value_and_gradients(chain), *operands)


def test_in_a_loop_on_the_device(dtype):
    def scan(many, w):
        return lax.scan(lambda count, x: (count + 1, x @ w), 0, many)[1]

    many = np.stack([X, X + 1, X - 1])
    assert is_native(scan, jnp.asarray(many, dtype), jnp.asarray(W, dtype))
    compare_in_half(scan, dtype, many, W)


def test_in_shard_map_on_each_device(dtype):
    devices = jax.devices("cpu")
    mesh = Mesh(np.array(devices), ("replica",))
    sharded = jax.shard_map(
        jnp.dot, mesh=mesh, in_specs=(P("replica"), P()), out_specs=P("replica")
    )
    many = np.concatenate([X] * len(devices))
    assert is_native(sharded, jnp.asarray(many, dtype), jnp.asarray(W, dtype))
    compare_in_half(sharded, dtype, many, W)


def test_under_vmap_and_activation_checkpointing(dtype):
    many = np.stack([X, X + 1])
    compare_in_half(jax.vmap(jnp.dot, in_axes=(0, None)), dtype, many, W)
    compare_in_half(jax.vmap(jnp.dot, in_axes=(None, 0)), dtype, X, np.stack([W, W + 1]))
    compare_in_half(value_and_gradients(jax.checkpoint(jnp.dot)), dtype, X, W)


def test_a_gradient_of_weights_is_not_copied_to_be_transposed(dtype):
    def gradient(x, w, dy):
        return jax.vjp(lambda w: x @ w, w)[1](dy)

    arrays = [jnp.asarray(each, dtype) for each in (X, W, X @ W)]
    text = jax.jit(gradient).lower(*arrays).compile().as_text()
    assert TARGET in text
    assert " transpose(" not in text


@pytest.mark.parametrize(
    ("dtype", "left", "right"),
    [
        ("float32", (64, 64), (64, 64)),  # XLA is as fast
        ("float32", (4, 64), (64, 512)),
        ("float32", (9, 64), (64, 512)),
        ("int32", (64, 64), (64, 64)),
        ("bfloat16", (4, 64), (64, 512)),  # too few rows
        ("bfloat16", (16, 16), (16, 16)),  # too few operations
        ("bfloat16", (0, 64), (64, 64)),
    ],
)
def test_other_products_are_left_to_xla(dtype, left, right):
    assert not is_native(jnp.dot, jnp.ones(left, dtype), jnp.ones(right, dtype))


def test_a_result_of_another_type_is_left_to_xla(dtype):
    def wide(x, w):
        return lax.dot_general(x, w, DOTS[0], preferred_element_type=jnp.float32)

    assert not is_native(wide, jnp.asarray(X, dtype), jnp.asarray(W, dtype))


def test_an_array_divided_by_jit_is_left_to_xla(dtype):
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("batch",))
    x = jax.device_put(jnp.asarray(X, dtype), NamedSharding(mesh, P("batch")))
    assert not is_native(jnp.dot, x, jnp.asarray(W, dtype))


def test_an_exported_program_is_portable(dtype):
    x, w = (jax.ShapeDtypeStruct(each.shape, dtype) for each in (X, W))
    assert TARGET not in export.export(jax.jit(jnp.dot))(x, w).mlir_module()


def test_they_are_counted(dtype):
    lowering.reset_counts()
    jax.jit(lambda x, w: x @ w).lower(jnp.asarray(X, dtype), jnp.asarray(W, dtype))
    assert cpu.status().lowered == {kernel_dtypes.MATRIX_PRODUCT: 1}


def test_neighbouring_axes_are_one():
    numbers = (((3,), (0,)), ((), ()))
    assert recognise((2, 5, 7, 32), (32, 48), numbers) == Product(
        batch=(1, 1),
        rows=70,
        inner=32,
        columns=48,
        strides=((1, 1, 32, 1), (1, 1, 48, 1), (70 * 48, 70 * 48, 48, 1)),
    )


def test_axes_that_are_not_neighbours_have_no_form():
    # Rows (a, c) of an array (a, b, c), of which b is summed over.
    assert recognise((32, 32, 32), (32, 48), (((1,), (0,)), ((), ()))) is None


@pytest.mark.parametrize("numbers", DOTS)
def test_a_product_in_the_forward_pass_is_no_weight_gradient(numbers):
    assert not is_weight_gradient(numbers)


def test_a_sum_over_the_first_axes_is_a_weight_gradient():
    assert is_weight_gradient((((0, 1), (0, 1)), ((), ())))
