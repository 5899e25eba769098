"""Arrays that CPU devices read where they lie."""

import jax
import numpy as np
import pytest
from convoy.engine.data.placement import ALIGNMENT, AXIS, THREADED_COPY, Placement, aligned


def unaligned(values):
    """Copy an array to memory that begins where XLA would not take it."""
    memory = np.empty(values.nbytes + 2 * ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT + values.itemsize
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def addresses(array):
    return {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}


VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize(
    "given",
    [
        VALUES,
        unaligned(VALUES),
        VALUES.T,
        VALUES[:, ::2],
        VALUES.astype(np.float64),
        VALUES.astype(np.int64),
        np.float32(3),
    ],
    ids=["any", "unaligned", "turned", "every second", "doubles", "longs", "one"],
)
def test_holds_the_same_values_in_the_type_of_the_device(given):
    made = aligned({"x": given})["x"]
    np.testing.assert_array_equal(made, given)
    assert made.dtype == jax.dtypes.canonicalize_dtype(np.asarray(given).dtype)
    assert made.ctypes.data % ALIGNMENT == 0


def test_large_arrays_are_copied_in_parts():
    given = unaligned(np.arange(THREADED_COPY // 4 + 7, dtype=np.float32).reshape(-1, 1))
    np.testing.assert_array_equal(aligned(given), given)


def test_all_devices_read_one_copy():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), (AXIS,))
    made = aligned(unaligned(VALUES))
    assert addresses(Placement(mesh).replicate(made)) == {made.ctypes.data}


def test_what_is_on_a_device_stays_there():
    given = jax.device_put(VALUES)
    assert aligned(given) is given
