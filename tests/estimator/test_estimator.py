import logging

import convoy
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from convoy.estimator import (
    ArrayInput,
    Estimator,
    EstimatorSpec,
    Hook,
    LoggingHook,
    ModeKeys,
    RunConfig,
    function,
)
from convoy.report.files import read

from .conftest import layers, regression

pytestmark = pytest.mark.integration


class Notes(Hook):
    """Writes down what it is told."""

    def __init__(self, stop_after=None):
        self.steps, self.losses, self.values, self.ends = [], [], [], []
        self.stop_after = stop_after

    def begin(self, run):
        self.ends.append(("begin", run.global_step))

    def after_execution(self, run):
        self.steps.append(run.global_step)
        self.losses.append(run.loss)
        self.values.append({name: list(value) for name, value in run.values.items()})
        run.stopped = run.global_step == self.stop_after

    def after_save(self, run):
        self.ends.append(("save", run.global_step))

    def end(self, run):
        self.ends.append(("end", run.global_step))


def test_trains_evaluates_and_predicts_as_stock_keras(tmp_path, data, batches, stock):
    estimator = Estimator(regression, tmp_path, RunConfig(steps_per_execution=2))
    notes = Notes()
    estimator.train(batches, steps=4, hooks=[notes])
    assert notes.steps == [2, 4]
    assert notes.ends == [("begin", 0), ("save", 4), ("end", 4)]
    stock.train(2, 4).check(estimator)

    results = estimator.evaluate(lambda: data)
    loss, error = stock.model.evaluate(*data, verbose=0)
    assert results == pytest.approx({"loss": loss, "error": error, "global_step": 4}, rel=1e-5)

    predicted = list(estimator.predict(lambda: data[0]))
    np.testing.assert_allclose(predicted, stock.model.predict(data[0], verbose=0), rtol=1e-5)
    by_batch = estimator.predict(lambda: (data[0],), yield_single_examples=False)
    assert [len(part) for part in by_batch] == [16]


def test_goes_on_where_another_estimator_ended(tmp_path, batches, stock):
    for count in (2, 2):
        Estimator(regression, tmp_path).train(batches, steps=count)
    # The data begins anew with each; momentum does not.
    stock.train(2, 2).train(2, 2).check(Estimator(regression, tmp_path))
    estimator = Estimator(regression, tmp_path).train(batches, max_steps=4)
    assert estimator.latest_checkpoint().name == "epoch-0000-step-00000004"
    estimator.train(batches, max_steps=5)
    assert estimator.latest_checkpoint().name == "epoch-0000-step-00000005"


def test_replicas_train_as_one_with_a_larger_batch(tmp_path, data, batches, stock):
    config = RunConfig(strategy=convoy.Strategy(devices=2), steps_per_execution=2)
    estimator = Estimator(regression, tmp_path, config)
    estimator.train(batches, steps=4)
    stock.train(4, 4).check(estimator)
    steps = estimator.evaluate(lambda: ArrayInput(*data, batch_size=2), steps=4)
    assert steps["loss"] == pytest.approx(stock.model.evaluate(*data, verbose=0)[0], rel=1e-5)
    order = estimator.predict(lambda: ArrayInput(data[0], batch_size=1))
    np.testing.assert_allclose(
        list(order), stock.model.predict(data[0], verbose=0), rtol=1e-5, atol=1e-6
    )


def test_a_network_is_divided_into_stages_by_itself(tmp_path, data, batches, stock):
    config = RunConfig(strategy=convoy.Strategy(devices=2), stages=2, report=tmp_path / "reports")
    estimator = Estimator(regression, tmp_path / "run", config)
    estimator.train(batches, steps=2)
    stock.train(2, 2).check(estimator)
    (folder,) = (tmp_path / "reports").iterdir()
    model = read(folder).run["runs"][0]["model"]
    assert (model["stages"], model["replicas"]) == (2, 1)


def own_loss(features, labels, mode):
    """Build with a loss of its own, and a JAX function."""
    outputs = layers(features)
    predictions = {"outputs": outputs, "twice": 2 * outputs}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions)
    error = function(lambda a, b: jnp.square(a - b))(labels, outputs)
    loss = keras.ops.mean(error)
    return EstimatorSpec(
        mode,
        predictions,
        loss,
        "sgd",
        host_metrics=None
        if mode == "train"
        else (lambda labels, y: {"worst": np.abs(labels - y).max()}, [labels, outputs]),
        logged={"errors": error, "loss": loss} if mode == "train" else {},
    )


def test_hooks_see_every_step_and_can_end_the_run(tmp_path, data, batches, caplog):
    caplog.set_level(logging.INFO, logger="convoy.estimator")
    notes = Notes(stop_after=4)
    logged = LoggingHook(at_end=True, names=["loss"], keep="all", formatter=lambda v: f"all {v}")
    config = RunConfig(steps_per_execution=2, log_every=2, report=tmp_path / "reports")
    estimator = Estimator(own_loss, tmp_path, config)
    estimator.train(batches, steps=8, hooks=[notes, logged])
    assert notes.steps == [2, 4]
    for loss, values in zip(notes.losses, notes.values, strict=True):
        assert np.shape(values["errors"]) == (2, 2, 1)
        np.testing.assert_allclose(
            np.mean(values["errors"], axis=(1, 2)), values["loss"], rtol=1e-5
        )
        assert loss == pytest.approx(np.mean(values["loss"]), rel=1e-5)
    text = caplog.text
    assert f"loss = {notes.losses[0]}, step = 2 (" in text
    assert len([line for line in text.splitlines() if "all {'loss': array([" in line]) == 1
    (folder,) = (tmp_path / "reports").iterdir()
    for *_, names in read(folder).parts["metrics"]:
        assert set(names) == {"loss", "logged errors", "logged loss"}

    results = estimator.evaluate(lambda: data)
    predicted = list(estimator.predict(lambda: data[0], predict_keys="outputs"))
    assert all(set(sample) == {"outputs"} for sample in predicted)
    errors = data[1] - np.array([sample["outputs"] for sample in predicted])
    expected = {"worst": np.abs(errors).max(), "loss": np.mean(errors**2), "global_step": 4}
    assert results == pytest.approx(expected, rel=1e-5)


def test_reports_what_was_compiled_and_how_it_ran(tmp_path, data, batches):
    config = RunConfig(tmp_path / "run", steps_per_execution=2, report=tmp_path)
    estimator = Estimator(regression, config=config)
    estimator.train(batches, steps=4)
    estimator.train(batches, steps=2)
    estimator.evaluate(lambda: ArrayInput(*data, batch_size=2), steps=4)
    first, second = map(read, sorted(tmp_path.glob("tf_report__*")))
    assert [program["name"] for program in first.programs] == ["train"]
    model = first.run["runs"][0]["model"]
    assert model["parameters"] == 19
    assert model["bytes"]["weights"] == 19 * 4
    assert [layer["type"] for layer in model["layers"]].count("Dense") == 2
    # Both runs of one network are in one report.
    assert [run["name"] for run in first.run["runs"]] == ["fit", "fit"]
    total = first.run["totals"]["devices"]["train"]
    assert (total["calls"], total["steps"]) == (3, 6)
    assert first.run["totals"]["host"]["checkpoint"]["count"] == 2
    assert first.run["state"] == "ended"
    assert [program["name"] for program in second.programs] == ["evaluate"]
    assert second.run["totals"]["devices"]["evaluate"]["steps"] == 4
    assert "checkpoint" not in second.run["totals"]["host"]


def test_a_run_ends_with_its_data(tmp_path, data):
    estimator = Estimator(regression, tmp_path)
    estimator.train(lambda: ArrayInput(*data, batch_size=2), steps=100)
    assert estimator.latest_checkpoint().name == "epoch-0000-step-00000008"


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        ({"steps": 1, "max_steps": 1}, "Both steps and max_steps"),
        ({"steps": 0}, "steps=0 is not a number of steps"),
        ({"max_steps": -1}, "max_steps=-1 is not a number of steps"),
    ],
)
def test_refuses_limits_that_are_none(tmp_path, batches, limits, match):
    with pytest.raises(ValueError, match=match):
        Estimator(regression, tmp_path).train(batches, **limits)


def test_refuses_functions_that_do_not_fit(tmp_path, batches, data):
    def train(model_fn, input_fn=batches):
        Estimator(model_fn, tmp_path).train(input_fn, steps=1)

    with pytest.raises(ValueError, match="The model function has an argument 'targets'"):
        train(lambda features, targets: None)
    with pytest.raises(ValueError, match="returns labels, but the model function has no"):
        train(lambda features: None)
    with pytest.raises(ValueError, match="returned NoneType, not an EstimatorSpec"):
        train(lambda features, labels: None)
    with pytest.raises(ValueError, match="The input function has an argument 'size'"):
        train(regression, lambda size: data)
    with pytest.raises(ValueError, match="returned int, not a dataset or arrays"):
        train(regression, lambda: 3)
    with pytest.raises(ValueError, match="items of 3 parts"):
        train(regression, lambda: iter([(data[0], data[1], data[1])]))
    with pytest.raises(ValueError, match="has no batch"):
        train(regression, lambda: iter([]))
    with pytest.raises(ValueError, match=r"params=3 is not a dict"):
        Estimator(regression, tmp_path, params=3)
