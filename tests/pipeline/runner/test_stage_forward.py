"""The functions of all stages, one after the other, are the forward pass and the loss."""

import convoy
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from convoy import keras_bridge
from convoy.engine.data.chunks import Chunk
from convoy.pipeline.device_layout import PipelinePlacement
from convoy.pipeline.runner.stage_forward import (
    StageInputs,
    make_stage_function,
    shapes_between_stages,
    with_local_operations,
)
from convoy.pipeline.stages import calls_of, make_stages, stage_assignment
from keras import layers

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
Y = X.sum(axis=1, keepdims=True)


def network():
    """Three stages; the first and the last share a layer with a regulariser."""
    shared = layers.Dense(3, kernel_regularizer="l2", name="shared")
    inputs = keras.Input((3,))
    x = layers.Dense(3, "tanh", name="middle")(shared(inputs))
    model = keras.Model(inputs, layers.Dense(1, name="last")(shared(x)))
    model.compile("sgd", "mse")
    model.build((None, 3))
    convoy.prepare(model)
    model.set_pipeline_stage_assignment([0, 1, 2, 2])
    return model


def stages_of(model):
    return make_stages(model, calls_of(model), stage_assignment(model))


def run(model, mode):
    """Run all stages by hand; return the results of the last one."""
    stages = stages_of(model)
    tensors, loss = {}, jnp.float32(0)
    metrics = [jnp.asarray(v.value) for v in model.metrics_variables]
    for stage in stages:
        compute = make_stage_function(model, stages, stage.number, mode)
        inputs = StageInputs(
            keras_bridge.values(stage.non_trainable),
            (X, Y) if stage.reads_data else (),
            metrics if stage.is_last and mode != "predict" else [],
            loss,
        )
        received = tuple(tensors[tensor] for tensor in stage.received)
        (outputs, own), (_, metrics_after, loss) = compute(
            keras_bridge.values(stage.trainable), received, inputs
        )
        if not stage.is_last:
            tensors |= zip(stage.outputs, outputs, strict=True)
    return outputs, own, metrics_after, loss


def test_prediction_returns_the_models_outputs_and_no_loss():
    model = network()
    outputs, own, metrics, loss = run(model, "predict")
    np.testing.assert_allclose(outputs, model(X), rtol=1e-5)
    assert (own, metrics, loss) == ((), [], 0)


@pytest.mark.parametrize("mode", ["train", "evaluate"])
def test_the_loss_is_that_of_the_model_with_each_regulariser_once(mode):
    model = network()
    outputs, _, metrics, loss = run(model, mode)
    assert outputs == ()
    expected = np.mean((np.asarray(model(X)) - Y) ** 2) + float(sum(model.losses))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert len(metrics) == len(model.metrics_variables)


def test_a_mask_does_not_leave_its_stage():
    inputs = keras.Input((5, 2))
    x = layers.LSTM(2, name="lstm")(layers.Masking(name="masking")(inputs))
    model = convoy.prepare(keras.Model(inputs, x))
    model.compile("sgd", "mse")
    convoy.split(model, ["lstm"])
    stages = stages_of(model)
    compute = make_stage_function(model, stages, 0, "predict")
    inputs = StageInputs([], (np.ones((1, 5, 2), np.float32),), [], jnp.float32(0))
    with pytest.raises(ValueError, match="Layer 'masking' of stage 0 passes a mask to a later"):
        compute([], (), inputs)


def test_shapes_between_stages_are_found_without_running_them():
    model = network()
    stages = stages_of(model)
    placement = PipelinePlacement(jax.devices()[:4], 2, [0])
    source = (placement.replicate((X, Y)), None, np.int32(0))
    chunk = Chunk("contiguous", source, 4, 1, 1)
    functions = [make_stage_function(model, stages, n, "predict") for n in range(3)]
    transform = with_local_operations(1, 1, "cpu")
    shapes, outputs = shapes_between_stages(stages, functions, chunk, 2, transform)
    assert sorted(shape.shape for shape in shapes.values()) == [(2, 3), (2, 3)]
    assert (outputs.shape, outputs.dtype) == ((2, 1), "float32")


def test_the_batch_takes_the_place_of_its_position():
    inputs = StageInputs([], (jnp.arange(4), 2), [], jnp.float32(0))
    assert inputs.with_batch(lambda source, index: source[index]).data == 2
    empty = inputs._replace(data=())
    assert empty.with_batch(lambda: pytest.fail("there is nothing to read")) is empty
