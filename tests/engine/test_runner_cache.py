import pytest
from convoy.engine.data.placement import Placement
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER
from convoy.engine.runner_cache import RunnerCache


@pytest.fixture
def cache(model):
    return RunnerCache(model, ExecutionConfig(Placement(None)), NULL_OBSERVER)


def test_a_runner_is_kept_until_the_model_is_compiled_again(model, cache):
    assert cache.find("train") is None
    runner = cache.get("train")
    assert cache.get("train") is runner
    assert cache.find("train") is runner
    assert cache.get("evaluate") is not runner
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    assert not runner.still_fits()
    assert cache.get("train") is not runner
