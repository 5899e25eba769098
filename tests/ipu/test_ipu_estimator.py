import logging
import re

import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.estimator import ArrayInput, Hook
from convoy.ipu.ipu_estimator import IPUEstimator, IPUEstimatorSpec, ModeKeys
from convoy.ipu.ipu_run_config import IPURunConfig, RunConfig
from convoy.ipu.ipu_session_run_hooks import IPULoggingTensorHook

pytestmark = pytest.mark.integration


class Losses(Hook):
    def __init__(self):
        self.steps, self.losses = [], []

    def after_execution(self, run):
        self.steps.append(run.global_step)
        self.losses.append(run.loss)


def config(loop=1, replicas=1, **settings):
    options = None
    if replicas > 1:
        options = ipu.config.IPUConfig()
        options.auto_select_ipus = replicas
    return RunConfig(IPURunConfig(loop, options, replicas), **settings)


def counting(batch=1, values=10):
    """Return an input function: 0, 1, 2, ... in batches, again and again."""
    rows = np.arange(values, dtype="float32")[:, None]
    return lambda: ArrayInput(rows, batch_size=batch, passes=None)


def weight_of(features):
    """Multiply by one weight, which begins with 1."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    return keras.ops.reshape(layer(features), (-1,))


def mean_of(optimizer):
    def model_fn(features, mode):
        y = weight_of(features)
        loss = keras.ops.mean(y)
        return IPUEstimatorSpec(
            mode,
            predictions={"y": y},
            loss=loss,
            train_op=optimizer(loss),
            eval_metrics=(lambda y: {"most": y.max()}, [y]),
        )

    return model_fn


def sgd(loss):
    return keras.optimizers.SGD(0.5)


def weight(estimator):
    (name,) = [n for n in estimator.get_variable_names() if n.startswith("trainable/0")]
    return float(estimator.get_variable_value(name).squeeze())


def step(estimator):
    return int(estimator.latest_checkpoint().name.rsplit("-", 1)[1])


def test_steps_count_on_and_max_steps_overshoots(tmp_path):
    estimator = IPUEstimator(mean_of(sgd), tmp_path, config(loop=2))
    estimator.train(counting(), steps=4)
    assert step(estimator) == 4
    assert weight(estimator) == 1 - 0.5 * (0 + 1 + 2 + 3)
    estimator.train(counting(), steps=4)
    assert step(estimator) == 8
    estimator.train(counting(), max_steps=9)
    assert step(estimator) == 10
    estimator.train(counting(), max_steps=10)
    assert step(estimator) == 10
    for call in (estimator.train, estimator.evaluate):
        with pytest.raises(ValueError, match="steps=3 is not a multiple of iterations_per_loop=2"):
            call(counting(), steps=3)
    with pytest.raises(ValueError, match="Neither steps nor max_steps"):
        estimator.train(counting())


def test_checkpoints_are_written_between_device_calls(tmp_path):
    settings = config(loop=2, save_checkpoints_steps=3)
    IPUEstimator(mean_of(sgd), tmp_path, settings).train(counting(), steps=8)
    # The first calls that end at 3 and at 6 or behind, and the end of the run.
    assert [int(path.name[-2:]) for path in sorted(tmp_path.glob("epoch-*"))] == [4, 6, 8]


def test_a_network_runs_on_the_logical_device_of_its_number(tmp_path):
    options = ipu.config.IPUConfig()
    options.auto_select_ipus = [1, 2]

    def averaged(loss):
        return ipu.optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(0.5))

    settings = RunConfig(IPURunConfig(1, options, num_replicas=2, ordinal=1))
    estimator = IPUEstimator(mean_of(averaged), tmp_path, settings).train(counting(), steps=1)
    assert [device.id for device in estimator.config.strategy.devices] == [1, 2]
    assert weight(estimator) == 1 - 0.5 * np.mean([0, 1])


def test_the_loss_is_the_mean_over_the_loop_and_replicas(tmp_path):
    """Four replicas, two steps in a loop, data summed over replicas: 14, 16, 18."""

    def model_fn(features, mode):
        summed = ipu.ops.cross_replica_ops.cross_replica_sum(keras.ops.mean(features))
        loss = summed + 0.0 * keras.ops.mean(weight_of(features))
        return IPUEstimatorSpec(mode, loss=loss, train_op=keras.optimizers.SGD(0.0))

    notes = Losses()
    estimator = IPUEstimator(model_fn, tmp_path, config(loop=2, replicas=4))
    estimator.train(counting(), steps=6, hooks=[notes])
    assert notes.steps == [2, 4, 6]
    assert notes.losses == pytest.approx([14, 16, 18])


def test_the_loss_of_a_single_step_is_the_mean_over_replicas_too(tmp_path):
    """Two replicas see 0 and 1, then 2 and 3; a loss may be a multiple of another."""

    def model_fn(features, mode):
        loss = 2 * keras.ops.mean(weight_of(features))
        optimizer = ipu.optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(0.0))
        return IPUEstimatorSpec(mode, loss=loss, train_op=optimizer)

    notes = Losses()
    estimator = IPUEstimator(model_fn, tmp_path, config(replicas=2))
    estimator.train(counting(), steps=2, hooks=[notes])
    assert notes.losses == [2 * 0.5, 2 * 2.5]


def test_replicas_take_the_mean_and_predict_in_order(tmp_path):
    def averaged(loss):
        optimizer = ipu.optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(0.5))
        return optimizer.minimize(loss)

    estimator = IPUEstimator(mean_of(averaged), tmp_path, config(replicas=4))
    estimator.train(counting(), steps=1)
    assert weight(estimator) == pytest.approx(1 - 0.5 * np.mean([0, 1, 2, 3]))
    found = estimator.predict(counting(), num_predictions=6)
    expected = weight(estimator) * np.arange(6)
    assert [sample["y"] for sample in found] == pytest.approx(list(expected))
    results = estimator.evaluate(counting(), steps=2)
    assert results["most"] == pytest.approx(weight(estimator) * 7)
    assert results["global_step"] == 1


def test_replicas_need_an_optimizer_that_brings_gradients_together(tmp_path):
    estimator = IPUEstimator(mean_of(sgd), tmp_path, config(replicas=2))
    with pytest.raises(ValueError, match=r"ipu\.optimizers\.CrossReplicaOptimizer"):
        estimator.train(counting(), steps=1)

    def accumulated(loss):
        return ipu.optimizers.GradientAccumulationOptimizerV2(keras.optimizers.SGD(0.5), 2)

    alone = IPUEstimator(mean_of(accumulated), tmp_path, config(loop=2, replicas=2))
    with pytest.raises(ValueError, match=r"ipu\.optimizers\.CrossReplicaOptimizer"):
        alone.train(counting(), steps=2)


def test_replicas_take_the_mean_of_what_each_has_accumulated(tmp_path):
    def averaged(loss):
        wrapped = ipu.optimizers.CrossReplicaGradientAccumulationOptimizerV2
        return wrapped(keras.optimizers.SGD(0.5), 2)

    estimator = IPUEstimator(mean_of(averaged), tmp_path, config(loop=2, replicas=2))
    estimator.train(counting(), steps=2)
    # The first replica sees 0 and 2, the second 1 and 3.
    assert weight(estimator) == pytest.approx(1 - 0.5 * np.mean([0 + 2, 1 + 3]))


def test_gradients_are_accumulated_as_the_optimizer_says(tmp_path):
    def summed(loss):
        return ipu.optimizers.GradientAccumulationOptimizerV2(keras.optimizers.SGD(0.5), 2)

    estimator = IPUEstimator(mean_of(summed), tmp_path, config(loop=4))
    estimator.train(counting(), steps=4)
    assert weight(estimator) == pytest.approx(1 - 0.5 * (0 + 1 + 2 + 3))
    assert step(estimator) == 4
    with pytest.raises(ValueError, match="not a multiple of num_mini_batches=2"):
        IPUEstimator(mean_of(summed), tmp_path / "b", config(loop=3)).train(counting(), steps=3)


def test_a_global_batch_is_divided_over_replicas(tmp_path):
    seen = []

    def input_fn(params, mode):
        seen.append((params["batch_size"], mode))
        return counting(params["batch_size"])()

    def averaged(loss):
        return ipu.optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(0.5))

    estimator = IPUEstimator(
        mean_of(averaged), tmp_path, config(replicas=2), train_batch_size=4, eval_batch_size=2
    )
    estimator.train(input_fn, steps=1)
    assert weight(estimator) == pytest.approx(1 - 0.5 * np.mean([0, 1, 2, 3]))
    estimator.evaluate(input_fn, steps=1)
    assert seen == [(2, ModeKeys.TRAIN), (1, ModeKeys.EVAL)]
    with pytest.raises(ValueError, match="does not take `params`"):
        estimator.train(counting(), steps=1)


def test_a_hook_logs_values_of_the_loop(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="convoy.estimator")
    mode = IPULoggingTensorHook.LoggingMode.ALL
    hook = IPULoggingTensorHook(
        every_n_iter=2, logging_mode=mode, formatter=lambda v: f" loss = {np.mean(v['loss']):.3f}"
    )
    estimator = IPUEstimator(
        mean_of(lambda loss: [keras.optimizers.SGD(0.0), hook.log({"loss": loss})]),
        tmp_path,
        config(loop=2, log_step_count_steps=None),
    )
    estimator.train(counting(), steps=8)
    lines = [record.message for record in caplog.records if record.name == "convoy.estimator"]
    assert lines == [" loss = 1.500", " loss = 5.500"]
    with pytest.raises(RuntimeError, match="was called before"):
        hook.log(None)
    with pytest.raises(RuntimeError, match="was never called"):
        estimator.train(counting(), steps=2, hooks=[IPULoggingTensorHook(at_end=True)])
    with pytest.raises(ValueError, match="pass one of them"):
        IPULoggingTensorHook(every_n_iter=1, every_n_secs=1)


def test_a_hook_logs_the_last_value_by_default(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="convoy.estimator")
    hooks = [IPULoggingTensorHook(every_n_iter=1), IPULoggingTensorHook(at_end=True)]

    def logged(loss):
        return [keras.optimizers.SGD(0.0), hooks[0].log({"a": loss}), hooks[1].log([loss])]

    settings = config(loop=2, log_step_count_steps=None)
    IPUEstimator(mean_of(logged), tmp_path, settings).train(counting(), steps=4)
    lines = [record.message for record in caplog.records if record.name == "convoy.estimator"]
    patterns = [
        r"a = 1\.0, step = 2 \(\d+\.\d{3} sec\)",
        r"a = 3\.0, step = 4 \(\d+\.\d{3} sec\)",
        r"\w+ = 3\.0, step = 4 \(\d+\.\d{3} sec\)",
    ]
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line)


@pytest.mark.parametrize("distances", [{}, {"every_n_iter": 1, "every_n_secs": 2.0}])
def test_a_hook_logs_by_calls_or_by_seconds(distances):
    with pytest.raises(ValueError, match=r"every_n_iter=.* and every_n_secs=.*: pass one of them"):
        IPULoggingTensorHook(**distances)
    IPULoggingTensorHook(at_end=True)


def test_the_host_is_called_after_every_step(tmp_path):
    seen = []

    def model_fn(features, mode):
        loss = keras.ops.mean(weight_of(features))
        call = (lambda loss, x: seen.append((float(loss), x.tolist())), [loss, features])
        return IPUEstimatorSpec(mode, loss=loss, train_op=keras.optimizers.SGD(0.0), host_call=call)

    IPUEstimator(model_fn, tmp_path, config()).train(counting(), steps=2)
    assert seen == [(0.0, [[0.0]]), (1.0, [[1.0]])]
    with pytest.raises(ValueError, match="host_call runs after every step"):
        IPUEstimator(model_fn, tmp_path / "b", config(loop=2)).train(counting(), steps=2)


def test_data_must_last_and_keep_its_shape(tmp_path):
    rows = np.ones((3, 1), "float32")
    estimator = IPUEstimator(mean_of(sgd), tmp_path, config())
    with pytest.raises(RuntimeError, match="ended after 3 of 5 steps"):
        estimator.train(lambda: ArrayInput(rows, batch_size=1), steps=5)
    uneven = ArrayInput(rows, batch_size=2, drop_remainder=False)
    with pytest.raises(ValueError, match="differ in shape"):
        estimator.evaluate(lambda: uneven)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"config": 3}, ValueError, "config is of type int. Pass an ipu RunConfig"),
        ({"params": 3}, ValueError, "params=3 is not a dict"),
        ({"params": {"input_fn": 1}}, ValueError, "'input_fn', which is reserved"),
        (
            {"params": {"batch_size": 1}, "train_batch_size": 2},
            ValueError,
            "and a batch size were passed",
        ),
        (
            {"config": config(replicas=2), "train_batch_size": 3},
            ValueError,
            "batch size=3 is not a multiple of num_replicas=2",
        ),
        ({"predict_batch_size": 0}, ValueError, "batch size=0 is not a number of samples"),
    ],
)
def test_refuses_arguments_that_have_no_meaning(tmp_path, arguments, error, match):
    with pytest.raises(error, match=match):
        IPUEstimator(mean_of(sgd), tmp_path, **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"mode": ModeKeys.TRAIN, "loss": 1}, ValueError, "needs a loss and a train_op"),
        (
            {"mode": ModeKeys.EVAL, "loss": 1},
            ValueError,
            "The spec for EVAL needs a loss, and one of eval_metric_ops and eval_metrics",
        ),
        (
            {"mode": "eval", "loss": 1, "eval_metric_ops": {}, "eval_metrics": (max, [])},
            ValueError,
            "The spec for EVAL needs a loss, and one of eval_metric_ops and eval_metrics",
        ),
        (
            {"mode": "eval", "eval_metrics": [max]},
            TypeError,
            "is of type list. Pass a tuple of a function",
        ),
        ({"mode": "eval", "eval_metrics": (max,)}, ValueError, "has 1 parts"),
        ({"mode": "eval", "host_call": (1, [])}, TypeError, "is not a function"),
        (
            {"mode": "eval", "host_call": (max, 1)},
            TypeError,
            "is of type int. Pass a list of tensors",
        ),
    ],
)
def test_a_spec_has_what_its_mode_needs(arguments, error, match):
    with pytest.raises(error, match=match):
        IPUEstimatorSpec(**arguments)


def test_a_model_function_returns_a_spec_for_its_mode(tmp_path):
    other = IPUEstimator(lambda features, mode: 3, tmp_path)
    with pytest.raises(ValueError, match="returned int, not an IPUEstimatorSpec"):
        other.train(counting(), steps=1)
    nothing = IPUEstimator(lambda features, mode: IPUEstimatorSpec(mode), tmp_path)
    with pytest.raises(ValueError, match="for PREDICT has no predictions"):
        next(nothing.predict(counting()))


def test_an_input_function_is_given_what_it_names(tmp_path):
    seen = []

    def input_fn(mode, params, config, input_context):
        seen.append((mode, params, config.steps_per_execution, input_context))
        return counting()()

    estimator = IPUEstimator(mean_of(sgd), tmp_path, config(loop=2), params={"a": 1})
    estimator.train(input_fn, steps=2)
    assert seen == [(ModeKeys.TRAIN, {"a": 1}, 2, None)]


def test_devices_selected_by_number_are_as_many_as_replicas(tmp_path):
    options = ipu.config.IPUConfig()
    options.select_ipus = [1]
    estimator = IPUEstimator(mean_of(sgd), tmp_path, RunConfig(IPURunConfig(1, options, 2)))
    with pytest.raises(ValueError, match=r"are 2 devices, but 1 are selected\. Make them"):
        estimator.train(counting(), steps=1)


def test_refuses_a_training_operation_without_an_optimizer(tmp_path):
    estimator = IPUEstimator(mean_of(lambda loss: 3), tmp_path)
    with pytest.raises(
        ValueError, match="train_op=3 is neither an optimizer nor the result of its minimize"
    ):
        estimator.train(counting(), steps=1)


def test_metrics_are_those_of_all_replicas(tmp_path):
    """Device metrics: labels 1 to 4 against 0, on two replicas."""

    def model_fn(features, labels, mode):
        y = 0.0 * weight_of(features)
        return IPUEstimatorSpec(
            mode,
            loss=keras.ops.mean(keras.ops.abs(labels - y)),
            eval_metric_ops={"error": (keras.metrics.MeanAbsoluteError(), labels, y)},
        )

    rows = np.arange(1, 5, dtype="float32")
    estimator = IPUEstimator(model_fn, tmp_path, config(replicas=2))
    results = estimator.evaluate(lambda: ArrayInput(rows[:, None], rows, batch_size=1), steps=2)
    assert results == pytest.approx({"error": 2.5, "loss": 2.5, "global_step": 0})


def sharded(used):
    def model_fn(features, labels, mode):
        with ipu.scopes.ipu_shard(0):
            x = keras.layers.Dense(3, activation="tanh")(features)
        with ipu.scopes.ipu_shard(used - 1):
            x = keras.layers.Dense(1)(x)
        loss = keras.ops.mean(keras.ops.square(x - labels))  # goes where its inputs are
        optimizer = keras.optimizers.SGD(0.1)
        return IPUEstimatorSpec(mode, predictions=x, loss=loss, train_op=optimizer)

    return model_fn


def shards_config(shards):
    options = ipu.config.IPUConfig()
    options.auto_select_ipus = shards
    return RunConfig(IPURunConfig(2, options, 1, shards), tf_random_seed=3)


def test_a_network_is_divided_by_hand_over_shards(tmp_path, rng):
    x, y = rng.normal(size=(8, 2)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")

    def input_fn():
        return ArrayInput(x, y, batch_size=4, passes=None)

    whole = IPUEstimator(sharded(1), tmp_path / "whole", RunConfig(tf_random_seed=3))
    divided = IPUEstimator(sharded(2), tmp_path / "divided", shards_config(2))
    for estimator in (whole, divided):
        estimator.train(input_fn, steps=4)
    network = next(iter(divided._networks.values()))
    stages = network.model.get_pipeline_stage_assignment()
    assert stages[0] == 0
    assert set(stages[1:]) == {1}
    # The second network's layers have other names.
    pairs = list(zip(weights_of(whole), weights_of(divided), strict=True))
    assert len(pairs) == 4
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def weights_of(estimator):
    names = [n for n in estimator.get_variable_names() if n.startswith("trainable/")]
    return [estimator.get_variable_value(n) for n in sorted(names)]


def test_refuses_other_shards_than_the_network_has(tmp_path):
    estimator = IPUEstimator(sharded(2), tmp_path, shards_config(4))
    inputs = np.zeros((4, 2), "float32"), np.zeros((4, 1), "float32")
    with pytest.raises(ValueError, match=r"num_shards=4, but ipu_shard uses 2\. Pass 2"):
        estimator.train(lambda: ArrayInput(*inputs, batch_size=4), steps=2)


def test_a_function_changes_gradients_before_they_are_put_together(tmp_path):
    def clipped(loss):
        inner = ipu.optimizers.MapGradientOptimizer(
            keras.optimizers.SGD(0.5), lambda gradient, variable: keras.ops.minimum(gradient, 2.0)
        )
        return ipu.optimizers.GradientAccumulationOptimizerV2(inner, 4)

    estimator = IPUEstimator(mean_of(clipped), tmp_path, config(loop=4))
    estimator.train(counting(), steps=4)
    # Of each micro-batch: 0, 1, 2 and 3, not of their sum.
    assert weight(estimator) == pytest.approx(1 - 0.5 * (0 + 1 + 2 + 2))
