import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.estimator import ArrayInput, Hook
from convoy.ipu.ipu_estimator import ModeKeys
from convoy.ipu.ipu_pipeline_estimator import IPUPipelineEstimator, IPUPipelineEstimatorSpec
from convoy.ipu.ipu_run_config import IPURunConfig, RunConfig
from convoy.ipu.ops.pipelining_ops import OptimizerFunctionOutput, PipelineSchedule
from convoy.ipu.pipelining.options import FailedPreconditionError

pytestmark = pytest.mark.integration

X, RATE, START = 1.5, 0.5, 1.0


class Losses(Hook):
    def __init__(self):
        self.losses = []

    def after_execution(self, run):
        self.losses.append(run.loss)


def config(loop, shards=2, replicas=1):
    options = ipu.config.IPUConfig()
    options.auto_select_ipus = shards * replicas
    return RunConfig(IPURunConfig(loop, options, replicas, shards))


def line(mode, count=4, optimizer=None, **settings):
    """Build L = w x + y, with the product in one stage and the sum in another."""

    def first(features, labels):
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        return layer(features), labels

    def second(product, labels):
        return keras.ops.mean(product[:, 0] + labels)

    def optimizer_function(loss):
        return OptimizerFunctionOutput(optimizer or keras.optimizers.SGD(RATE), loss)

    return IPUPipelineEstimatorSpec(
        mode,
        computational_stages=[first, second],
        gradient_accumulation_count=count,
        optimizer_function=optimizer_function,
        eval_metrics_fn=lambda loss: {"loss": np.mean(loss)},
        **settings,
    )


def ones(count=64, y=0.0):
    x = np.full((count, 1), X, "float32")
    return lambda: ArrayInput(x, np.full(count, y, "float32"), batch_size=1, passes=None)


def weight(estimator):
    (name,) = [n for n in estimator.get_variable_names() if n.startswith("trainable")]
    return float(estimator.get_variable_value(name).squeeze())


@pytest.mark.parametrize(("method", "factor"), [("sum", 4), ("mean", 1), ("RUNNING_MEAN", 1)])
def test_gradients_and_losses_of_a_line(tmp_path, method, factor):
    notes = Losses()
    estimator = IPUPipelineEstimator(
        lambda mode: line(mode, reduction_method=method), tmp_path, config(loop=8)
    )
    estimator.train(ones(), steps=8, hooks=[notes])
    # Two weight updates of four micro-batches; the loss is the mean over both.
    step = factor * RATE * X
    assert weight(estimator) == pytest.approx(START - 2 * step)
    assert notes.losses == pytest.approx([X * (START + START - step) / 2])
    # The global step counts micro-batches.
    assert estimator.latest_checkpoint().name.endswith("00000008")
    results = estimator.evaluate(ones(y=2.0), steps=8)
    expected = {"loss": X * weight(estimator) + 2.0, "global_step": 8}
    assert results == pytest.approx(expected)


def test_replicas_of_a_pipeline_take_the_mean(tmp_path):
    optimizer = ipu.optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(RATE))
    estimator = IPUPipelineEstimator(
        lambda mode: line(mode, optimizer=optimizer), tmp_path, config(loop=4, replicas=2)
    )
    estimator.train(ones(), steps=4)
    assert weight(estimator) == pytest.approx(START - 4 * RATE * X)


def test_predicts_in_order_in_stages(tmp_path):
    def first(features):
        return keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(features)

    def model_fn(mode):
        return IPUPipelineEstimatorSpec(
            mode,
            [first, lambda x: {"y": x[:, 0] + 1}],
            gradient_accumulation_count=2,
            pipeline_schedule=PipelineSchedule.Interleaved,
        )

    rows = np.arange(4, dtype="float32")[:, None]
    estimator = IPUPipelineEstimator(model_fn, tmp_path, config(loop=2))
    found = [s["y"] for s in estimator.predict(lambda: ArrayInput(rows, batch_size=1))]
    assert found == pytest.approx([1, 2, 3, 4])


@pytest.mark.parametrize(
    ("count", "loop", "shards", "settings", "error", "match"),
    [
        (6, 6, 2, {}, FailedPreconditionError, "not a multiple of 4"),
        (4, 6, 2, {}, ValueError, "iterations_per_loop=6 is not a multiple"),
        (8, 4, 2, {}, ValueError, "iterations_per_loop=4 is not a multiple"),
        (4, 4, 4, {}, ValueError, "takes 2 devices, but num_shards=4. Pass 2"),
        (4, 4, 2, {"device_mapping": [0, 0]}, ValueError, "takes 1 devices, but num_shards=2"),
        (
            4,
            4,
            1,
            {"device_mapping": [0, 0], "pipeline_schedule": PipelineSchedule.Interleaved},
            NotImplementedError,
            "Use Grouped or Sequential",
        ),
    ],
)
def test_refuses_numbers_that_do_not_fit(tmp_path, count, loop, shards, settings, error, match):
    estimator = IPUPipelineEstimator(
        lambda mode: line(mode, count, **settings), tmp_path, config(loop, shards)
    )
    with pytest.raises(error, match=match):
        estimator.train(ones(), steps=loop)


def run(estimator, mode, steps):
    """Run a pipeline without weight updates, as far as its first device call."""
    if mode == "eval":
        return estimator.evaluate(ones(), steps=steps)
    return next(estimator.predict(ones()))


@pytest.mark.parametrize("mode", ["eval", "infer"])
@pytest.mark.parametrize(
    ("count", "loop", "settings", "error", "match"),
    [
        (3, 3, {}, FailedPreconditionError, "gradient_accumulation_count=3 is not a multiple of 2"),
        (
            3,
            3,
            {"pipeline_schedule": PipelineSchedule.Interleaved},
            FailedPreconditionError,
            "gradient_accumulation_count=3 is not a multiple of 2",
        ),
        (4, 6, {}, ValueError, "iterations_per_loop=6 is not a multiple"),
    ],
)
def test_refuses_numbers_that_do_not_fit_in_other_modes(
    tmp_path, mode, count, loop, settings, error, match
):
    estimator = IPUPipelineEstimator(
        lambda mode: line(mode, count, **settings), tmp_path, config(loop)
    )
    with pytest.raises(error, match=match):
        run(estimator, mode, loop)


@pytest.mark.parametrize(
    ("count", "schedule"), [(2, PipelineSchedule.Grouped), (3, PipelineSchedule.Sequential)]
)
def test_a_stage_is_enough_for_each_micro_batch_of_an_evaluation(tmp_path, count, schedule):
    estimator = IPUPipelineEstimator(
        lambda mode: line(mode, count, pipeline_schedule=schedule), tmp_path, config(count)
    )
    assert run(estimator, "eval", count)["loss"] == X * START


def test_tiles_for_input_and_output_want_more_micro_batches(tmp_path):
    settings = config(3)
    tiles = settings.ipu.ipu_options.io_tiles
    tiles.num_io_tiles, tiles.place_ops_on_io_tiles = 32, True
    estimator = IPUPipelineEstimator(lambda mode: line(mode, 3), tmp_path, settings)
    with pytest.raises(FailedPreconditionError, match="=3 is not 4 or more, with io_tiles"):
        run(estimator, "eval", 3)


def test_three_stages_fill_four_shards_but_for_one(tmp_path):
    def model_fn(mode):
        two = line(mode, 6)
        first, last = two.computational_stages
        return IPUPipelineEstimatorSpec(
            mode,
            [first, lambda product, labels: (2 * product, labels), last],
            gradient_accumulation_count=6,
            optimizer_function=two.optimizer_function,
        )

    estimator = IPUPipelineEstimator(model_fn, tmp_path, config(6, shards=4))
    estimator.train(ones(), steps=6)
    assert weight(estimator) == pytest.approx(START - 6 * RATE * 2 * X)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"gradient_accumulation_count": None}, ValueError, "no gradient_accumulation_count"),
        ({"gradient_accumulation_count": 0}, ValueError, "not a number of micro-batches"),
        ({"computational_stages": [max]}, ValueError, "two stages or more"),
        ({"computational_stages": max}, TypeError, "Pass a list"),
        ({"optimizer_function": None}, ValueError, "no optimizer_function"),
        ({"mode": ModeKeys.EVAL}, ValueError, "no eval_metrics_fn"),
        ({"accumulate_outfeed": True}, ValueError, "does not take 'accumulate_outfeed'"),
        ({"device_mapping": [0]}, ValueError, "1 entries. Pass 2, one for each"),
    ],
)
def test_a_spec_has_what_its_mode_needs(arguments, error, match):
    given = {
        "mode": ModeKeys.TRAIN,
        "computational_stages": [max, max],
        "gradient_accumulation_count": 4,
        "optimizer_function": max,
    }
    with pytest.raises(error, match=match):
        IPUPipelineEstimatorSpec(**given | arguments)


def test_takes_the_earlier_name_of_the_count():
    spec = IPUPipelineEstimatorSpec("infer", [max, max], pipeline_depth=8)
    assert spec.options.gradient_accumulation == 8


def test_refuses_functions_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match="has an argument 'features'"):
        IPUPipelineEstimator(lambda features, mode: None, tmp_path, config(4))
    with pytest.raises(TypeError, match="not an IPUPipelineEstimatorSpec"):
        IPUPipelineEstimator(lambda mode: 3, tmp_path, config(4)).train(ones(), steps=4)

    def without_loss(mode):
        spec = line(mode)
        spec.eval_metrics_fn = lambda loss: {"other": 1.0}
        return spec

    estimator = IPUPipelineEstimator(without_loss, tmp_path, config(4))
    with pytest.raises(KeyError, match="no 'loss'"):
        estimator.evaluate(ones(), steps=4)


def changed(tmp_path, **changes):
    """Return an estimator whose spec is that of a line but for some changes."""

    def model_fn(mode):
        spec = line(mode)
        vars(spec).update(changes)
        return spec

    return IPUPipelineEstimator(model_fn, tmp_path, config(4))


def test_refuses_what_functions_return_that_is_none(tmp_path):
    with pytest.raises(TypeError, match="metrics returned float, not a dict"):
        changed(tmp_path, eval_metrics_fn=lambda loss: 1.0).evaluate(ones(), steps=4)
    with pytest.raises(TypeError, match="returned int, not an OptimizerFunctionOutput"):
        changed(tmp_path, optimizer_function=lambda loss: 3).train(ones(), steps=4)
    stages = (lambda features: features, lambda x: (x, x))
    several = changed(tmp_path, computational_stages=stages)
    with pytest.raises(ValueError, match=r"returns 2 predictions\. Return one, or a dict"):
        next(several.predict(ones()))


@pytest.mark.parametrize(
    ("wrap", "match"),
    [
        (
            lambda sgd: ipu.optimizers.GradientAccumulationOptimizerV2(sgd, 2),
            "The pipeline accumulates gradients. Pass",
        ),
        (
            lambda sgd: ipu.optimizers.MapGradientOptimizer(sgd, lambda g, variable: g),
            "MapGradientOptimizer is not supported with pipeline stages",
        ),
    ],
)
def test_refuses_optimizers_that_a_pipeline_would_not_heed(tmp_path, wrap, match):
    optimizer = wrap(keras.optimizers.SGD(RATE))
    estimator = IPUPipelineEstimator(
        lambda mode: line(mode, optimizer=optimizer), tmp_path, config(loop=4)
    )
    with pytest.raises(ValueError, match=match):
        estimator.train(ones(), steps=4)


def test_an_optimizer_function_returns_an_optimizer_and_a_loss():
    with pytest.raises(TypeError, match=r"opt is of type str\. Pass an optimizer"):
        OptimizerFunctionOutput("sgd", 1)
    with pytest.raises(NotImplementedError, match="tape is not supported"):
        OptimizerFunctionOutput(keras.optimizers.SGD(), 1, tape=1)
