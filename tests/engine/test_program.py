"""The program of a whole model."""

import jax
import jax.numpy as jnp
import numpy as np
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.placement import Placement
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.runner_cache import RunnerCache

BATCH = 4
EXAMPLE = (jax.ShapeDtypeStruct((BATCH, 3), jnp.float32),)


def cache_of(model, observer=NULL_OBSERVER):
    return RunnerCache(model, ExecutionConfig(Placement(None)), observer)


def chunk(steps, batch=BATCH):
    return Chunk("block", (jnp.ones((2, batch, 3)),), batch, steps, steps)


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
