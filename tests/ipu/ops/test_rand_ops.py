import numpy as np
import pytest
from convoy import ipu

dropout = ipu.rand_ops.dropout


def test_a_seed_is_two_numbers():
    x = np.ones((100, 100), "float32")
    first, again, other = (np.asarray(dropout(x, 0.25, seed=s)) for s in ([1, 2], [1, 2], [1, 3]))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert set(np.unique(first)) == {0, np.float32(1 / 0.75)}
    assert first.mean() == pytest.approx(1, abs=0.05)


def test_a_seed_is_taken_in_a_program():
    seed, x = np.array([1, 2], "int32"), np.ones(8, "float16")
    (found,) = ipu.ipu_compiler.compile(lambda x, s: dropout(x, seed=s), [x, seed])
    np.testing.assert_array_equal(found, dropout(x, seed=seed))
    assert found.dtype == "float16"


@pytest.mark.parametrize("seed", [None, 3, [1, 2]])
def test_values_along_an_axis_go_together(seed):
    found = np.asarray(dropout(np.ones((20, 3), "float32"), noise_shape=[20, 1], seed=seed))
    assert {tuple(row) for row in found} == {(0, 0, 0), (2, 2, 2)}


@pytest.mark.parametrize("shape", [[2, 3], [4], [4, 3, 1]])
def test_refuses_a_shape_of_draws_that_does_not_fit(shape):
    with pytest.raises(ValueError, match=r"does not fit the shape \[4, 3\]\. .* same size or 1"):
        dropout(np.ones((4, 3), "float32"), noise_shape=shape)


def test_dropout_keeps_the_mean():
    x = np.ones(10000, "float32")
    dropped = np.asarray(ipu.rand_ops.dropout(x, 0.25, seed=1))
    assert set(np.unique(dropped)) == {0, np.float32(1 / 0.75)}
    assert dropped.mean() == pytest.approx(1, abs=0.05)
    assert ipu.rand_ops.dropout(x, 0) is x
    with pytest.raises(ValueError, match="rate=1 is not"):
        ipu.rand_ops.dropout(x, 1)
