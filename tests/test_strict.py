"""Strict promotion holds for code of this repository, and not for installed packages."""

import jax
import jax.numpy as jnp
import keras
import pytest

HALF, FULL, ROW = jnp.ones((2, 3), "float16"), jnp.ones((2, 3)), jnp.ones(3)


@pytest.mark.parametrize("wrap", [lambda add: add, jax.jit], ids=["eager", "traced"])
def test_our_code_may_not_mix_types(wrap):
    with pytest.raises(ValueError, match="no available implicit dtype"):
        wrap(lambda x, y: x + y)(HALF, FULL)


@pytest.mark.parametrize("wrap", [lambda add: add, jax.jit], ids=["eager", "traced"])
def test_our_code_may_not_mix_ranks(wrap):
    with pytest.raises(ValueError, match="could not be broadcast"):
        wrap(lambda x, y: x + y)(FULL, ROW)


def test_numbers_of_python_take_the_type_and_rank_of_an_array():
    assert (HALF * 2 + 1).dtype == "float16"


@pytest.mark.parametrize("wrap", [lambda add: add, jax.jit], ids=["eager", "traced"])
def test_keras_mixes_both(wrap):
    assert wrap(keras.ops.add)(HALF, ROW).dtype == "float32"
    dense = keras.layers.Dense(4, dtype="mixed_float16")
    assert wrap(dense)(FULL).dtype == "float16"


def test_our_code_is_checked_after_keras_has_done_the_same():
    shapes = jnp.ones((5, 7), "float16"), jnp.ones(7)
    assert keras.ops.multiply(*shapes).dtype == "float32"
    with pytest.raises(ValueError, match="no available implicit dtype"):
        shapes[0] * shapes[1]
    with pytest.raises(ValueError, match="could not be broadcast"):
        shapes[0] * shapes[1].astype("float16")
