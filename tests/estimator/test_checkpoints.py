import convoy
import keras
import pytest
from convoy.estimator import Estimator, EstimatorSpec, RunConfig, WarmStart

from .conftest import regression


def test_begins_with_weights_of_another_run(tmp_path, data, batches):
    Estimator(regression, tmp_path / "first").train(batches, steps=2)
    first = Estimator(regression, tmp_path / "first").evaluate(lambda: data)
    warm = Estimator(regression, tmp_path / "second", warm_start_from=tmp_path / "first")
    assert warm.evaluate(lambda: data) == first | {"global_step": 0}
    warm.train(batches, steps=1)
    assert warm.latest_checkpoint().name == "epoch-0000-step-00000001"
    some = WarmStart(tmp_path / "first", variables="nothing")
    with pytest.raises(convoy.CheckpointError, match="no variable has 'nothing' in its path"):
        Estimator(regression, tmp_path / "third", warm_start_from=some).train(batches, steps=1)


def test_refuses_the_checkpoint_of_another_network(tmp_path, batches):
    def wider(features, labels, mode):
        outputs = keras.layers.Dense(1)(keras.layers.Dense(5)(features))
        return EstimatorSpec(mode, outputs, "mse", "sgd")

    Estimator(regression, tmp_path).train(batches, steps=1)
    message = r"the shape \(\d+,.*\) for .*kernel, not \(\d+, 5\)\. It is of another network"
    with pytest.raises(convoy.CheckpointError, match=message):
        Estimator(wider, tmp_path).train(batches, steps=1)


def test_keeps_the_newest_checkpoints_and_evaluates_an_older_one(tmp_path, data, batches):
    config = RunConfig(checkpoint_every=2, keep=2, summary_every=1)
    estimator = Estimator(regression, tmp_path, config)
    estimator.train(batches, steps=6)
    kept = sorted(path.name for path in tmp_path.glob("epoch-*"))
    assert kept == ["epoch-0000-step-00000004", "epoch-0000-step-00000006"]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
    older = estimator.evaluate(lambda: data, checkpoint_path=tmp_path / kept[0])
    assert older["global_step"] == 4
    assert older["loss"] != estimator.evaluate(lambda: data)["loss"]
