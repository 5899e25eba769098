"""Stand-ins for arrays on devices of other machines."""

import jax
import numpy as np
import pytest
from convoy import compile_target
from convoy.compile_target import CompileTarget, stand_in, stand_ins
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding


@pytest.fixture
def devices():
    return tuple(jax.devices()[:2])


@pytest.fixture
def target(devices):
    return CompileTarget("two CPUs", devices, 1 << 30, 1e12, 1e11)


def test_a_target_is_in_use_in_its_block_only(target):
    assert compile_target.target() is None
    with pytest.raises(KeyError), compile_target.use(target):
        raise KeyError
    with compile_target.use(target):
        assert compile_target.target() is target
        assert compile_target.is_compile_only(target.devices[1])
        assert compile_target.has_device_of(None)
        assert compile_target.has_device_of(SingleDeviceSharding(target.devices[0]))
    assert not compile_target.is_compile_only(target.devices[1])
    assert not compile_target.has_device_of(None)


def test_a_stand_in_has_a_part_on_each_device(devices):
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    array = stand_in((4, 3), "float32", sharding)
    assert array.nbytes == 48
    shards = {shard.device: shard.data.shape for shard in array.addressable_shards}
    assert shards == dict.fromkeys(devices, (2, 3))
    assert array.copy().sharding == sharding


def test_outside_of_programs_the_values_are_zeros(devices):
    array = stand_in((), "float32", SingleDeviceSharding(devices[0]))
    assert float(array) == 0.0
    assert (float(array + 2), float(2 + array), float(array - 2), float(array / 2)) == (2, 2, -2, 0)
    np.testing.assert_array_equal(np.asarray(array), np.float32(0))
    assert array.block_until_ready() is array
    assert array.is_ready()


def test_arrays_that_move_to_the_target_become_stand_ins(target):
    with compile_target.use(target):
        moved = stand_ins({"a": np.zeros((2, 3), "float32")}, None)
    assert moved["a"].shape == (2, 3)
    assert moved["a"].sharding.device_set == {target.devices[0]}
