"""What stages send arrives on the devices that read it, until its last reader has received it."""

import convoy
import jax
import jax.numpy as jnp
import keras
import pytest
from convoy.engine.state import Variables
from convoy.pipeline import Action, Kind
from convoy.pipeline.communication import StageCommunication, move
from convoy.pipeline.device_layout import DeviceLayout, PipelinePlacement
from keras import layers


@pytest.fixture
def layout():
    """Three stages on two devices; the last one also reads what the first one computes."""
    inputs = keras.Input((4,))
    first = layers.Dense(4, name="a")(inputs)
    x = layers.Add(name="add")([layers.Dense(4, name="b")(first), first])
    model = convoy.prepare(keras.Model(inputs, layers.Dense(1, name="c")(x)))
    model.compile("sgd", "mse")
    convoy.split(model, ["b", "add"])
    placement = PipelinePlacement(jax.devices()[:4], 2, [0])
    return DeviceLayout(model, Variables(model, "predict"), (0, 1, 0), placement)


def values(number):
    return (jnp.full((2, 4), number, jnp.float32),)


def test_arrays_move_to_another_device():
    source, target = jax.devices()[:2]
    array = jax.device_put(jnp.ones(3), source)
    (moved,) = move([array], [], source, target)
    assert moved.devices() == {target}
    assert moved.tolist() == [1, 1, 1]


def test_outputs_arrive_on_the_rank_of_each_reader(layout):
    communication = StageCommunication(layout, {})
    communication.send_forward(0, 5, 1, values(1.0), jnp.float32(3.0))
    (second,) = communication.receive_forward(1, 5, 1)
    assert second.devices() == {jax.devices()[3]}
    communication.send_forward(1, 5, 1, values(2.0), jnp.float32(4.0))
    received = communication.receive_forward(2, 5, 1)
    assert sorted(float(x[0, 0]) for x in received) == [1.0, 2.0]
    assert all(x.devices() == {jax.devices()[2]} for x in received)


def test_the_loss_goes_from_stage_to_stage(layout):
    communication = StageCommunication(layout, {})
    assert communication.receive_loss(0, 0, 0) is None
    communication.send_forward(0, 0, 0, values(1.0), jnp.float32(3.0))
    assert communication.receive_loss(1, 0, 0) == 3.0
    assert communication.receive_loss(1, 0, 0) is None


def test_a_tensor_is_dropped_when_its_last_reader_has_received_it(layout):
    communication = StageCommunication(layout, {})
    communication.send_forward(0, 0, 0, values(1.0), jnp.float32(0.0))
    communication.receive_forward(1, 0, 0)
    with pytest.raises(KeyError):
        communication.receive_forward(1, 0, 0)


def test_gradients_of_all_readers_arrive_at_the_stage_that_computed_the_tensor(layout):
    communication = StageCommunication(layout, {})
    order = layout.with_gradient[2]
    from_last = {order.index(layout.stages[0].outputs[0]): 2.0}
    gradients = [values(from_last.get(index, 1.0))[0] for index in range(len(order))]
    communication.send_backward(2, 0, 0, gradients)
    communication.send_backward(1, 0, 0, values(5.0))
    (sent,) = communication.receive_backward(0, 0, 0)
    assert sorted(float(g[0, 0]) for g in sent) == [2.0, 5.0]
    assert all(g.devices() == {jax.devices()[0]} for g in sent)
    assert communication.receive_backward(2, 0, 0) == ()


def test_weight_gradients_of_other_processes_send_nothing(layout):
    communication = StageCommunication(layout, {})
    communication.expect(Action(1, Kind.BACKWARD_WEIGHTS, 0), 0)
    assert communication.receive_backward(0, 0, 0) == ([],)
