import jax
import jax.numpy as jnp
import pytest
from convoy.engine.compiled_runner import output_bytes
from convoy.engine.data.placement import Placement
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER
from convoy.engine.runner_cache import RunnerCache
from convoy.engine.state import Variables

BATCH = 4
EXAMPLE = (jax.ShapeDtypeStruct((BATCH, 3), jnp.float32),)


@pytest.fixture
def predicting(model):
    """The runner of predictions, which is a `CompiledRunner`."""
    return RunnerCache(model, ExecutionConfig(Placement(None)), NULL_OBSERVER).get("predict")


def test_a_runner_no_longer_fits_a_model_with_other_variables(model, predicting):
    assert predicting.still_fits()
    model.layers[0].trainable = False
    assert not predicting.still_fits()


def test_the_outputs_of_a_prediction_fit_into_the_budget(model, predicting):
    size = output_bytes(model, Variables(model, "predict").read(), EXAMPLE)
    assert size == BATCH * 2 * 4
    assert predicting.limit_outputs(EXAMPLE, 10 * size, 100) == 10
    assert predicting.limit_outputs(EXAMPLE, 10 * size, 3) == 3
    assert predicting.limit_outputs(EXAMPLE, 0, 3) == 1
    assert predicting.output_steps == 1
