"""Replicas of a pipeline, the devices of each rank, and the variables on them."""

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy.engine.data.chunks import Chunk
from convoy.engine.state import Variables
from convoy.pipeline.device_layout import (
    DeviceGroup,
    DeviceLayout,
    PipelinePlacement,
    data_position,
)
from keras import layers


def network():
    """Three layers; the last one also reads what the first one computes."""
    inputs = keras.Input((4,))
    first = layers.Dense(4, name="a")(inputs)
    x = layers.Dropout(0.5, name="drop", seed=3)(layers.Dense(4, name="b")(first))
    model = keras.Model(inputs, layers.Dense(1, name="c")(layers.Add(name="add")([x, first])))
    model.compile("sgd", "mse")
    return convoy.prepare(model)


def make_layout(mapping=(0, 1), devices=4, stages=("b",)):
    model = convoy.split(network(), list(stages))
    placement = PipelinePlacement(jax.devices()[:devices], max(mapping) + 1, [0])
    return model, DeviceLayout(model, Variables(model, "predict"), mapping, placement)


def test_rows_of_devices_are_replicas_and_the_rest_is_unused():
    placement = PipelinePlacement(jax.devices()[:3], 2, [0])
    assert placement.replicas == 1
    assert placement.rows == [jax.devices()[:2]]
    assert (placement.own, placement.spans_processes, placement.crosses_processes) == (
        [0],
        False,
        False,
    )


def test_data_goes_to_the_ranks_that_read_it():
    placement = PipelinePlacement(jax.devices()[:4], 2, [1])
    placed = placement.replicate(np.zeros((2, 3), np.float64))
    assert placed.shapes.dtype == np.float32
    assert {r: list(copies) for r, copies in placed.copies.items()} == {0: [1], 1: [1]}
    assert placed.copies[1][1].devices() == {jax.devices()[3]}


def test_each_replica_has_its_shard_of_the_samples():
    placement = PipelinePlacement(jax.devices()[:4], 2, [0])
    block = np.arange(12, dtype=np.float32).reshape(2, 6)
    placed = placement.shard(block)
    assert placed.copies[0][0].tolist() == block[:, :3].tolist()
    assert placed.copies[1][0].tolist() == block[:, 3:].tolist()
    assert placed.shapes.shape == (2, 6)


def test_a_group_joins_and_splits_the_arrays_of_its_replicas():
    group = DeviceGroup(PipelinePlacement(jax.devices()[:4], 2, [0]), 1)
    assert group.devices == {0: jax.devices()[1], 1: jax.devices()[3]}
    value = group.put(np.float32(2.0))
    split = group.split(value)
    assert {r: x.devices().pop() for r, x in split.items()} == group.devices
    assert group.join(split).sharding.is_equivalent_to(value.sharding, 0)
    assert group.holds(value)
    assert not group.holds(jax.device_put(np.float32(2.0), jax.devices()[0]))


def test_a_group_of_one_replica_is_one_device():
    group = DeviceGroup(PipelinePlacement(jax.devices()[:2], 2, [0]), 1)
    assert group.mesh is None
    value = group.put(np.float32(2.0))
    assert group.split(value) == {0: value}
    assert group.join({0: value}) is value


def test_variables_are_on_the_rank_of_their_stage():
    model, layout = make_layout()
    ranks = {v.path: layout.rank_of(v) for v in model.variables}
    assert (ranks["a/kernel"], ranks["b/kernel"], ranks["c/bias"]) == (0, 1, 1)
    first, second = layout.by_rank(model.trainable_variables)
    assert [v.path for v in first] == ["a/kernel", "a/bias"]
    assert len(second) == 4
    layout.place({})
    assert model.get_layer("b").kernel.value.devices() == {jax.devices()[1], jax.devices()[3]}


def test_a_tensor_is_sent_once_to_each_rank_and_kept_for_its_last_reader():
    _, layout = make_layout(mapping=(0, 1, 0), stages=("b", "add"))
    (tensor,) = layout.stages[0].outputs
    assert layout.last_reader[tensor] == {1: 1, 0: 2}
    assert layout.targets == [[0, 1], [0], []]
    assert (layout.producer[tensor], layout.last) == (0, 2)
    assert layout.last_group is layout.groups[0]


def test_integers_are_sent_without_a_gradient():
    inputs = keras.Input((2,))
    x = layers.Embedding(4, 3, name="table")(keras.ops.cast(inputs, "int32"))
    model = convoy.prepare(keras.Model(inputs, layers.Dense(1, name="d")(x)))
    model.compile("sgd", "mse")
    convoy.split(model, ["table", "d"])
    placement = PipelinePlacement(jax.devices()[:3], 3, [0])
    layout = DeviceLayout(model, Variables(model, "predict"), (0, 1, 2), placement)
    assert [len(tensors) for tensors in layout.with_gradient] == [0, 0, 1]


def test_replicas_begin_with_seeds_of_their_own():
    model, layout = make_layout()
    layout.place({})
    values = layout.replica_values()
    assert list(values) == [0, 1]
    roles = zip(model.non_trainable_variables, layout.roles.seeds, strict=True)
    (seed,) = [variable for variable, is_seed in roles if is_seed]
    first, second = (np.asarray(values[replica][id(seed)]) for replica in (0, 1))
    assert (first != second).all()
    assert (second - np.asarray(layout.seed_offset(1, second)) == first).all()
    kernel = model.get_layer("a").kernel
    assert values[1][id(kernel)].devices() == {jax.devices()[2]}


def test_a_layer_in_stages_on_two_devices_is_rejected():
    shared = layers.Dense(4, name="shared")
    inputs = keras.Input((4,))
    x = shared(layers.ReLU(name="relu")(shared(inputs)))
    model = convoy.prepare(keras.Model(inputs, x))
    model.compile("sgd", "mse")
    convoy.split(model, ["relu"])
    placement = PipelinePlacement(jax.devices()[:2], 2, [0])
    with pytest.raises(ValueError, match=r"'shared/kernel' runs in stages on devices 0 and 1"):
        DeviceLayout(model, Variables(model, "predict"), (0, 1), placement)


def test_the_position_of_a_micro_batch_is_in_the_copy_of_its_device():
    placement = PipelinePlacement(jax.devices()[:4], 2, [0, 1])
    block = placement.shard(np.zeros((2, 4), np.float32))
    source, index, replica = data_position(Chunk("block", block, 4, 2, 2), 1, 1, 1)
    assert source is block.copies[1][1]
    assert (index, replica) == (1, 1)
    arrays = placement.replicate(np.zeros((8, 2), np.float32))
    chunk = Chunk("contiguous", (arrays, None, np.int32(4)), 2, 2, 2)
    assert data_position(chunk, 0, 1, 0)[0] == (arrays.copies[0][0], None, 4)
