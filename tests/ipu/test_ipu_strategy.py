import json
import subprocess
import sys

import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.report.files import read

pytestmark = pytest.mark.integration

PopDistStrategy = ipu.distributed.popdist_strategy.PopDistStrategy


def weighing():
    """A model whose gradient is the mean of its inputs."""
    return keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred + 0 * y_true, axis=-1)


def weight_after_one_update(strategy, count=1, **options):
    x = np.array([[1.0], [2.0], [4.0], [8.0]], "float32")
    with strategy.scope():
        model = weighing()
        if options:
            model.set_gradient_accumulation_options(count, **options)
        model.compile(keras.optimizers.SGD(1.0), mean_output, steps_per_execution=count)
    model.fit(x[: 2 * count], x[: 2 * count], batch_size=1, shuffle=False, verbose=0)
    return float(model.get_weights()[0][0, 0])


@pytest.mark.parametrize(
    ("strategy", "expected"), [(ipu.ipu_strategy.IPUStrategy, 1 + 2), (PopDistStrategy, 3 / 2)]
)
def test_replicas_add_up_their_gradients_or_take_the_mean(configure, strategy, expected):
    configure(2)
    assert weight_after_one_update(strategy()) == -expected


@pytest.mark.parametrize(
    ("strategy", "method", "expected"),
    [
        (ipu.ipu_strategy.IPUStrategy, "sum", -(1 + 2 + 4 + 8)),
        (ipu.ipu_strategy.IPUStrategy, "mean", -(1 + 2 + 4 + 8) / 2),
        (ipu.ipu_strategy.IPUStrategy, "RUNNING_MEAN", -(1 + 2 + 4 + 8) / 2),
        (PopDistStrategy, "sum", -(1 + 2 + 4 + 8) / 2),
        (PopDistStrategy, "mean", -(1 + 2 + 4 + 8) / 4),
        (PopDistStrategy, "running_mean", -(1 + 2 + 4 + 8) / 4),
    ],
)
def test_gradients_of_micro_batches_and_replicas(configure, strategy, method, expected):
    configure(2)
    options = {"gradient_accumulation_reduction_method": method}
    assert weight_after_one_update(strategy(), 2, **options) == expected


@pytest.mark.parametrize(
    ("strategy", "method", "expected"),
    [
        (ipu.ipu_strategy.IPUStrategy, "sum", 255),
        (ipu.ipu_strategy.IPUStrategy, "mean", 255 / 4),
        (ipu.ipu_strategy.IPUStrategy, "running_mean", 255 / 4),
        (PopDistStrategy, "sum", 255 / 2),
        (PopDistStrategy, "mean", 255 / 8),
    ],
)
def test_gradients_and_losses_of_stages_and_replicas(configure, strategy, method, expected):
    """Two replicas of two stages, and four micro-batches on each: 1, 2, 4 and so on to 128."""
    configure(4)
    x = 2.0 ** np.arange(8, dtype="float32")[:, None]
    with strategy().scope():
        model = weighing()
        model.add(keras.layers.Identity())
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(4, gradient_accumulation_reduction_method=method)
        model.compile(keras.optimizers.SGD(1.0), lambda y, found: y + found, steps_per_execution=4)
    history = model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    assert model.get_weights()[0][0, 0] == -expected
    # Whatever becomes of gradients: the mean over all micro-batches and replicas.
    assert history.history["loss"] == [255 / 8]
    assert model.optimizer.iterations == 1


def test_tells_keras_of_one_replica(configure):
    configure(2)
    assert ipu.ipu_strategy.IPUStrategy().num_replicas_in_sync == 1
    assert PopDistStrategy().num_replicas_in_sync == 2


def test_a_scope_uses_the_configuration_that_is_then_in_force(configure):
    configure(1)
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        one = weighing()
    configure(2)
    with strategy.scope():
        two = weighing()
    assert one.set_replication_options.__self__.engine.replicas == 1
    assert two.set_replication_options.__self__.engine.replicas == 2


def test_options_reach_the_engine(configure):
    def change(config):
        config.norms.experimental.distributed_batch_norm_replica_group_size = 2
        config.optimizations.maximum_cross_replica_sum_buffer_size = 100
        config.floating_point_behaviour.set_all = True
        config.allow_recompute = True

    configure(4, change)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = weighing()
    engine = model.set_replication_options.__self__.engine
    assert engine.execution_config.batch_norm_group == 2
    assert engine.execution_config.reduction_bucket == 100
    assert engine.numerics.stochastic_rounding == "on"
    assert engine.config.allow_recompute


def test_replicas_that_share_statistics_are_groups(configure):
    def change(config):
        config.norms.experimental.distributed_batch_norm_replica_group_size = 3

    configure(4, change)
    strategy = ipu.ipu_strategy.IPUStrategy()
    with (
        pytest.raises(ValueError, match=r"=3 does not divide 4 replicas. Pass one of 1, 2, 4"),
        strategy.scope(),
    ):
        pass


@pytest.mark.parametrize("asked_for", [True, False])
def test_statistics_are_stable_whether_asked_for_or_not(configure, rng, caplog, asked_for):
    """The variance is that of differences from the mean, however large that is."""
    configure(1, lambda config: setattr(config.norms, "use_stable_statistics", asked_for))
    assert not caplog.records
    x = (1000 + rng.normal(size=(32, 4))).astype("float32")
    with ipu.ipu_strategy.IPUStrategy().scope():
        norm = keras.layers.BatchNormalization(momentum=0.0)
        model = keras.Sequential([keras.Input((4,)), norm])
        model.compile("sgd", "mse")
    model.fit(x, x, batch_size=32, verbose=0)
    np.testing.assert_allclose(norm.moving_variance, x.var(axis=0), rtol=1e-5)


def test_leaves_models_plain_without_extensions():
    with ipu.ipu_strategy.IPUStrategy(enable_keras_extensions=False).scope():
        assert "fit" not in vars(weighing())
    assert not hasattr(weighing(), "set_pipelining_options")


def test_a_step_of_ones_own_is_trained_without_extensions():
    steps = []

    class Own(keras.Sequential):
        def train_step(self, state, data):
            steps.append(data)
            return super().train_step(state, data)

    with ipu.ipu_strategy.IPUStrategy(enable_keras_extensions=False).scope():
        model = Own(weighing().layers)
        model.compile("sgd", "mse")
        model.fit(np.ones((4, 1)), np.ones((4, 1)), batch_size=2, verbose=0)
    assert len(steps) == 1  # traced once


def test_refuses_a_device_that_is_no_ipu():
    with pytest.raises(ValueError, match="'/device:CPU:0' is not an IPU"):
        ipu.ipu_strategy.IPUStrategy("/device:CPU:0")


def test_runs_functions(configure):
    configure(2)
    strategy = ipu.ipu_strategy.IPUStrategy()
    index = ipu.replication_ops.replication_index
    total = strategy.run(
        lambda x: ipu.cross_replica_ops.cross_replica_sum(x * index().astype("float32")),
        args=(np.float32(3),),
    )
    assert total == 3
    with pytest.raises(RuntimeError, match=r"Call run\(\)"):
        strategy.experimental_run_v2(None)


LATE = """
import convoy, keras, numpy as np
x = np.arange(32, dtype="float32").reshape(16, 2) / 32
def train():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
    return model
train()
from convoy import ipu
for count in (1, 2):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = count
    config.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = train()
    print(model.set_replication_options.__self__.engine.replicas)
train()
"""


def test_more_devices_can_be_configured_after_training_has_begun():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "2"]
    assert "Resetting existing IPU configuration" in done.stderr


def test_the_variable_for_reports_is_heard(tmp_path, monkeypatch):
    directory = json.dumps({"autoReport.all": "true", "autoReport.directory": str(tmp_path)})
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", directory)
    weight_after_one_update(ipu.ipu_strategy.IPUStrategy())
    (folder,) = tmp_path.glob("tf_report__*")
    report = read(folder)
    assert [program["name"] for program in report.programs] == ["train"]
    # Two samples, one at a time.
    assert report.run["totals"]["devices"]["train"]["steps"] == 2


def test_reduces_over_replicas(configure):
    configure(2)
    strategy = ipu.ipu_strategy.IPUStrategy()
    index = ipu.replication_ops.replication_index
    assert strategy.run(lambda: strategy.reduce("SUM", index() + 1)) == 3
    assert strategy.run(lambda: strategy.reduce("mean", index().astype("float32") + 1)) == 1.5
    assert strategy.run(lambda x: strategy.reduce("SUM", x, axis=0), (np.ones(3, "float32"),)) == 6
    assert strategy.supports_loss_scaling
    assert strategy.reduce("MEAN", 3.0) == 3  # on the host
    with pytest.raises(ValueError, match="'MAX' is not a ReduceOp"):
        strategy.reduce("MAX", 1)


def test_refuses_to_run_on_float64():
    strategy = ipu.ipu_strategy.IPUStrategy()
    with pytest.raises(TypeError, match="is of type float64"):
        strategy.run(lambda x: x, (np.ones(2, "float64"),))
