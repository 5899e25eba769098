"""Programs of a model: their cache, and the limits of a prediction."""

import convoy
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.placement import Placement
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.program import ProgramCache, output_bytes
from convoy.engine.state import Variables

BATCH = 4
EXAMPLE = (jax.ShapeDtypeStruct((BATCH, 3), jnp.float32),)


@pytest.fixture
def model():
    with convoy.Strategy(devices=1).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def cache_of(model, observer=NULL_OBSERVER):
    return ProgramCache(model, ExecutionConfig(Placement(None)), observer)


def chunk(steps, batch=BATCH):
    return Chunk("block", (jnp.ones((2, batch, 3)),), batch, steps, steps)


def test_a_runner_is_kept_until_the_model_is_compiled_again(model):
    cache = cache_of(model)
    assert cache.find("train") is None
    runner = cache.get("train")
    assert cache.get("train") is runner
    assert cache.find("train") is runner
    assert cache.get("evaluate") is not runner
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    assert not runner.still_fits()
    assert cache.get("train") is not runner


def test_a_runner_no_longer_fits_a_model_with_other_variables(model):
    runner = cache_of(model).get("predict")
    assert runner.still_fits()
    model.layers[0].trainable = False
    assert not runner.still_fits()


def test_the_outputs_of_a_prediction_fit_into_the_budget(model):
    size = output_bytes(model, Variables(model, "predict").read(), EXAMPLE)
    assert size == BATCH * 2 * 4
    runner = cache_of(model).get("predict")
    assert runner.limit_outputs(EXAMPLE, 10 * size, 100) == 10
    assert runner.limit_outputs(EXAMPLE, 10 * size, 3) == 3
    assert runner.limit_outputs(EXAMPLE, 0, 3) == 1
    assert runner.max_steps == 1


def test_one_program_runs_any_number_of_steps(model):
    class Names(Observer):
        def __init__(self):
            self.names = []

        def program(self, name, program, varying=None):
            self.names.append(name)
            return program

    observer = Names()
    runner = cache_of(model, observer).get("predict")
    runner.limit_outputs(EXAMPLE, 1 << 20, 2)
    first, second = runner.run(chunk(2)), runner.run(chunk(1))
    assert (first.shape, second.shape) == ((2 * BATCH, 2), (BATCH, 2))
    np.testing.assert_array_equal(first[:BATCH], second)
    assert observer.names == ["predict"]


def test_a_prediction_leaves_the_variables_as_they_are(model):
    before = [variable.value for variable in model.variables]
    runner = cache_of(model).get("predict")
    runner.limit_outputs(EXAMPLE, 1 << 20, 2)
    runner.run(chunk(2))
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(value))
