import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.ipu.pipelining.options import FailedPreconditionError

pytestmark = pytest.mark.integration

Schedule = ipu.ops.pipelining_ops.PipelineSchedule


@pytest.fixture
def data(rng):
    return rng.normal(size=(32, 4)).astype("float32"), rng.normal(size=(32, 1)).astype("float32")


def sequential():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
    )


def staged():
    inputs = keras.Input((4,))
    with ipu.keras.PipelineStage(0):
        x = keras.layers.Dense(3, activation="tanh")(inputs)
    with ipu.keras.PipelineStage(1):
        x = keras.layers.Dense(1)(x)
    return keras.Model(inputs, x)


def compiled(model, steps_per_execution=1):
    model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps_per_execution)
    return model


def strategy_scope():
    return ipu.ipu_strategy.IPUStrategy().scope()


def stock_weights(data, batch, factor):
    """Train with stock Keras on big batches, whose gradients count several times."""
    keras.utils.set_random_seed(0)
    model = sequential()
    model.compile(keras.optimizers.SGD(0.1 * factor), "mse")
    model.fit(*data, batch_size=batch, shuffle=False, verbose=0)
    return model.get_weights()


def test_stages_train_as_one_big_batch_does(configure, data):
    configure(4)
    keras.utils.set_random_seed(0)
    with strategy_scope():
        model = staged()
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4,
            gradient_accumulation_reduction_method="mean",
            pipeline_schedule=Schedule.Grouped,
        )
        compiled(model, steps_per_execution=8)
        history = model.fit(*data, batch_size=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 1
    for own, stock in zip(model.get_weights(), stock_weights(data, 16, 2), strict=True):
        np.testing.assert_allclose(own, stock, rtol=1e-5, atol=1e-6)


def test_a_model_in_one_piece_accumulates_by_options_of_its_own(configure, data):
    configure(1)
    keras.utils.set_random_seed(0)
    with strategy_scope():
        model = sequential()
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=8)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
        compiled(model, steps_per_execution=4)
        model.fit(*data, batch_size=4, shuffle=False, verbose=0)
    assert model.optimizer.iterations == 2
    for own, stock in zip(model.get_weights(), stock_weights(data, 16, 4), strict=True):
        np.testing.assert_allclose(own, stock, rtol=1e-5, atol=1e-6)


def test_trains_again_without_compiling_again(configure, data):
    configure(1)
    with strategy_scope():
        model = compiled(sequential(), 8)
        model.fit(*data, batch_size=4, verbose=0)
        engine = model.set_replication_options.__self__.native["set_pipelining_options"].__self__
        programs = engine.host_loop.runners
        model.evaluate(*data, batch_size=4, verbose=0)
        model.fit(*data, batch_size=4, verbose=0)
    assert engine.host_loop.runners is programs


def test_evaluates_and_predicts_what_fills_no_batch(configure, data):
    configure(2)
    x, y = data[0][:30], data[1][:30]
    with strategy_scope():
        model = compiled(sequential(), 4)
        own = model.evaluate(x, y, batch_size=4, verbose=0)
        predicted = model.predict(x, batch_size=4, verbose=0)
    plain = sequential()
    plain.set_weights(model.get_weights())
    plain.compile("sgd", "mse")
    assert own == pytest.approx(plain.evaluate(x, y, verbose=0), rel=1e-5)
    np.testing.assert_allclose(predicted, plain.predict(x, verbose=0), rtol=1e-5, atol=1e-6)


def test_stages_evaluate_without_options(configure, data):
    configure(2)
    x, y = data[0][:30], data[1][:30]
    with strategy_scope():
        model = compiled(staged(), 4)
        own = model.evaluate(x, y, batch_size=4, verbose=0)
    plain = sequential()
    plain.set_weights(model.get_weights())
    plain.compile("sgd", "mse")
    assert own == pytest.approx(plain.evaluate(x, y, verbose=0), rel=1e-5)


class Calls(keras.callbacks.Callback):
    """Writes down which steps of training it was told of."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch))


@pytest.mark.parametrize(
    ("execution", "arguments", "expected"),
    [
        (2, {}, [("begin", 0), ("end", 1), ("begin", 2), ("end", 3)]),
        (4, {}, [("begin", 0), ("end", 3)]),
        (468, {}, [("begin", 0), ("end", 3)]),
        (2, {"steps_per_epoch": 4}, [("begin", 0), ("end", 1)]),
    ],
)
def test_callbacks_hear_of_executions_by_the_steps_of_a_replica(
    configure, data, caplog, execution, arguments, expected
):
    """Eight batches on two replicas: four steps on each."""
    configure(2)
    with strategy_scope():
        model = compiled(sequential(), execution)
    heard = Calls()
    model.fit(*data, batch_size=4, verbose=0, callbacks=[heard], **arguments)
    assert heard.calls == expected
    assert model.optimizer.iterations == expected[-1][1] + 1
    assert ("is more than the 4 steps" in caplog.text) == (execution > 4)
    assert "A weight update is made from 4 x 1 x 2 samples" in caplog.text


def test_compiling_anew_changes_the_executions(configure, data):
    configure(1)
    with strategy_scope():
        model = compiled(sequential(), 2)
        for execution in (2, 8):
            compiled(model, execution)
            heard = Calls()
            model.fit(*data, batch_size=4, verbose=0, callbacks=[heard])
            assert heard.calls[1] == ("end", execution - 1)


def test_options_that_change_hold_from_the_next_run_on(configure, data):
    """32 samples in batches of 2 on two devices: two replicas of one piece, or two stages."""
    configure(2)
    with strategy_scope():
        model = compiled(sequential(), 8)
        updates = []
        for change in (
            lambda: None,
            lambda: model.set_gradient_accumulation_options(4),
            lambda: (
                model.set_pipeline_stage_assignment([0, 1]),
                model.set_pipelining_options(8),
            ),
            model.reset_pipeline_stage_assignment,
        ):
            change()
            before = int(model.optimizer.iterations)
            model.fit(*data, batch_size=2, verbose=0)
            updates.append(int(model.optimizer.iterations) - before)
    assert updates == [8, 2, 2, 2]


@pytest.mark.parametrize(
    ("execution", "accumulation", "error", "match"),
    [
        (3, 1, ValueError, "8 steps .* not a multiple of steps_per_execution=3"),
        (4, 8, RuntimeError, "steps_per_execution=4 is not a multiple of .*=8"),
        (16, 16, RuntimeError, "steps_per_execution=8 is not a multiple of .*=16"),
    ],
)
def test_refuses_executions_that_do_not_divide(data, execution, accumulation, error, match):
    with strategy_scope():
        model = compiled(sequential(), execution)
        model.set_gradient_accumulation_options(accumulation)
        with pytest.raises(error, match=match):
            model.fit(*data, batch_size=4, verbose=0)


def test_steps_are_the_batches_of_all_replicas(configure, data):
    configure(2)
    with strategy_scope():
        model = compiled(sequential(), 4)
        model.set_gradient_accumulation_options(4)  # of training only
        whole = model.predict(data[0], batch_size=4, verbose=0)
        some = model.predict(data[0], batch_size=4, steps=4, verbose=0)
        np.testing.assert_array_equal(some, whole[:16])
        own = model.evaluate(*data, batch_size=4, steps=4, verbose=0)
        assert own == pytest.approx(np.mean((whole[:16] - data[1][:16]) ** 2), rel=1e-5)
        with pytest.raises(ValueError, match="steps=1 is fewer than the 2 replicas"):
            model.predict(data[0], batch_size=4, steps=1, verbose=0)


def test_validation_takes_any_number_of_samples(configure, data):
    configure(2)
    x, y = data
    with strategy_scope():
        model = compiled(sequential(), 4)
        history = model.fit(
            x, y, batch_size=4, validation_data=(x[:7], y[:7]), validation_batch_size=2, verbose=0
        )
    plain = sequential()
    plain.set_weights(model.get_weights())
    plain.compile("sgd", "mse")
    expected = plain.evaluate(x[:7], y[:7], verbose=0)
    assert history.history["val_loss"] == [pytest.approx(expected, rel=1e-5)]


def test_refuses_an_incomplete_batch_in_training_only(data):
    with strategy_scope():
        model = compiled(sequential())
        with pytest.raises(ValueError, match="30 samples do not make whole batches of 4"):
            model.fit(data[0][:30], data[1][:30], batch_size=4)


def test_reductions_are_shared_and_set_by_every_call():
    with strategy_scope():
        model = sequential()
    model.set_gradient_accumulation_options(2, "mean")
    model.set_pipelining_options(4)
    assert model.set_replication_options.__self__.accumulation.method.name == "SUM"
    assert model.set_replication_options.__self__.accumulation.gradient_accumulation == 2


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_refuses_counts_that_are_none(count):
    with strategy_scope():
        model = sequential()
    with pytest.raises(ValueError, match="Pass 1 or more"):
        model.set_gradient_accumulation_options(count)
    with pytest.raises(ValueError, match="Pass 1 or more"):
        model.set_pipelining_options(count)


def test_refuses_unknown_reductions():
    with strategy_scope():
        model = sequential()
    with pytest.raises(ValueError, match="'median' is not a GradientAccumulationReductionMethod"):
        model.set_gradient_accumulation_options(2, "median")
    with pytest.raises(ValueError, match="'most' is not a ReplicatedMetricReductionMethod"):
        model.set_replication_options("most")


def test_says_once_what_has_no_effect(caplog):
    with strategy_scope():
        model = sequential()
    for _ in range(2):
        model.set_infeed_queue_options(prefetch_depth=2)
        model.set_replication_options("MEAN")
    said = [record.message.split(": ")[-1] for record in caplog.records]
    assert said == ["prefetch_depth."]


def test_stages_need_a_count_that_suits_the_schedule(configure, data):
    configure(2)
    with strategy_scope():
        model = compiled(staged(), 6)
        with pytest.raises(ValueError, match="no number of micro-batches"):
            model.fit(*data, batch_size=4)
        model.set_pipelining_options(6)
        with pytest.raises(FailedPreconditionError, match="not a multiple of 4"):
            model.fit(*data, batch_size=4)


@pytest.mark.parametrize("schedule", [Schedule.Grouped, Schedule.Sequential])
def test_stages_may_share_a_device(configure, data, schedule):
    configure(1)
    keras.utils.set_random_seed(0)
    with strategy_scope():
        model = compiled(staged(), 8)
        model.set_pipelining_options(8, [0, 0], pipeline_schedule=schedule)
        model.fit(*data, batch_size=2, shuffle=False, verbose=0)
    for own, stock in zip(model.get_weights(), stock_weights(data, 16, 8), strict=True):
        np.testing.assert_allclose(own, stock, rtol=1e-5, atol=1e-6)


def test_interleaved_stages_share_a_device_in_inference_only(configure, data):
    configure(1)
    with strategy_scope():
        model = compiled(staged(), 4)
        model.set_pipelining_options(4, [0, 0], pipeline_schedule=Schedule.Interleaved)
        own = model.predict(data[0], batch_size=4, verbose=0)
        with pytest.raises(NotImplementedError, match=r"device_mapping=\[0, 0\] has several"):
            model.fit(*data, batch_size=4, verbose=0)
    np.testing.assert_allclose(own, model(data[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mapping", [[0], [0, 1, 2]])
def test_every_stage_has_a_device(configure, data, mapping):
    configure(4)
    with strategy_scope():
        model = compiled(staged(), 4)
        model.set_pipelining_options(4, mapping)
        with pytest.raises(ValueError, match=f"has {len(mapping)} entries, but .* has 2 stages"):
            model.fit(*data, batch_size=2, verbose=0)


@pytest.mark.parametrize("allowed", [True, False])
def test_recomputation_is_as_the_configuration_says(configure, data, allowed):
    configure(2, lambda config: setattr(config, "allow_recompute", allowed))
    mode = ipu.ops.pipelining_ops.RecomputationMode.RecomputeThenBackpropagate
    with strategy_scope():
        model = compiled(staged(), 4)
        model.set_pipelining_options(
            4, pipeline_schedule=Schedule.Sequential, recomputation_mode=mode
        )
        if allowed:
            with pytest.raises(
                NotImplementedError, match="Sequential schedule does not support Recompute"
            ):
                model.fit(*data, batch_size=4, verbose=0)
            model.set_pipelining_options(4, recomputation_mode=mode)
        model.fit(*data, batch_size=4, verbose=0)
        plan = model.set_replication_options.__self__.native[
            "set_pipelining_options"
        ].__self__.host_loop.current
    assert plan.pipeline.activation_checkpointing == allowed


def test_stages_need_devices(configure, data):
    configure(1)
    with strategy_scope():
        model = compiled(staged(), 4)
        model.set_pipelining_options(4)
        with pytest.raises(ValueError, match="on 2 devices, but 1 are configured"):
            model.fit(*data, batch_size=4)


@pytest.mark.parametrize(
    ("stages", "devices", "replicas"),
    [(2, 4, 2), (2, 8, 4), (3, 4, 1), (3, 8, 2), (3, 6, 1), (3, 12, 3), (2, 3, 1)],
)
def test_replicas_fill_the_devices_by_powers_of_two(configure, stages, devices, replicas):
    configure(devices)
    with strategy_scope():
        model = sequential()
    for _ in range(2):
        assert model.set_replication_options.__self__._fill_devices(stages) == replicas
    assert len(model.set_replication_options.__self__.engine.devices) // stages == replicas


def test_refuses_what_the_engine_would_bypass(data):
    class Own(keras.Sequential):
        def train_step(self, *args):
            pass

    with strategy_scope():
        own = Own([keras.Input((4,)), keras.layers.Dense(1)])
        eager = sequential()
        eager.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(RuntimeError, match="Own overrides train_step"):
        own.fit(*data)
    for run in (eager.fit, eager.evaluate, eager.predict):
        with pytest.raises(RuntimeError, match="run_eagerly=True"):
            run(data[0])


@pytest.mark.parametrize(
    ("name", "method"), [("train", "fit"), ("test", "evaluate"), ("predict", "predict")]
)
def test_refuses_a_model_that_makes_its_own_program(data, name, method):
    function = f"make_{name}_function"
    own = type("Own", (keras.Sequential,), {function: lambda self, force=False: None})
    with strategy_scope():
        model = compiled(own([keras.Input((4,)), keras.layers.Dense(1)]))
    with pytest.raises(RuntimeError, match=rf"Own overrides {function}, which {method}\(\)"):
        getattr(model, method)(data[0])


def test_steps_of_ones_own_are_run_by_stock_keras_unless_in_stages(configure, data):
    class Own(keras.Sequential):
        def test_step(self, state, data):
            logs, state = super().test_step(state, data)
            return logs | {"own": 1.0}, state

        def predict_step(self, state, data):
            outputs, state = super().predict_step(state, data)
            return outputs + 7, state

    configure(2)
    with strategy_scope():
        model = compiled(Own([keras.Input((4,)), keras.layers.Dense(1), keras.layers.Dense(1)]))
    assert model.evaluate(*data, verbose=0, return_dict=True)["own"] == 1
    expected = np.asarray(model(data[0])) + 7
    np.testing.assert_allclose(model.predict(data[0], verbose=0), expected, rtol=1e-5)
    model.set_pipeline_stage_assignment([0, 1])
    for method, step in ((model.evaluate, "test_step"), (model.predict, "predict_step")):
        with pytest.raises(RuntimeError, match=f"Own overrides {step}"):
            method(*data[:1], verbose=0)


def test_stages_do_not_run_a_call_of_ones_own(configure, data):
    class Own(keras.Sequential):
        def call(self, inputs, **kwargs):
            return super().call(inputs, **kwargs) + 1

    configure(2)
    with strategy_scope():
        model = compiled(Own([keras.Input((4,)), keras.layers.Dense(1), keras.layers.Dense(1)]))
        model.set_pipelining_options(4)
    model.set_pipeline_stage_assignment([0, 1])
    with pytest.raises(RuntimeError, match=r"Own overrides call\(\)"):
        model.fit(*data, batch_size=2, verbose=0)


def test_training_may_have_no_default(configure, data):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(1)
            self.dropout = keras.layers.Dropout(0.5)

        def call(self, inputs, training):
            with ipu.keras.PipelineStage(0):
                x = self.first(inputs)
            with ipu.keras.PipelineStage(1):
                return self.second(self.dropout(x, training=training))

    configure(2)
    with strategy_scope():
        model = compiled(Own(), 4)
        model.set_pipelining_options(4)
        model.fit(*data, batch_size=2, verbose=0)
        stages = [entry.pipeline_stage for entry in model.get_pipeline_stage_assignment()]
    assert stages == [0, 1, 1]


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.layers.Dense(3, activation="tanh")
        self.second = keras.layers.Dense(1)

    def call(self, inputs):
        with ipu.keras.PipelineStage(0):
            x = self.first(inputs)
        with ipu.keras.PipelineStage(1):
            return self.second(x)


def test_a_subclassed_model_has_the_stages_of_its_calls(configure, data, tmp_path):
    configure(4)
    keras.utils.set_random_seed(0)
    with strategy_scope():
        model = Subclassed()
        model.set_pipelining_options(4, gradient_accumulation_reduction_method="mean")
        compiled(model, steps_per_execution=8)
        with pytest.raises(RuntimeError, match=r"was not built.*Call model\.build"):
            model.get_pipeline_stage_assignment()
        with pytest.raises(RuntimeError, match=r"was not built.*Call model\.build"):
            model.set_pipeline_stage_assignment([])
        model.fit(*data, batch_size=2, shuffle=False, verbose=0)
        found = model.get_pipeline_stage_assignment()
    for own, stock in zip(model.get_weights(), stock_weights(data, 16, 2), strict=True):
        np.testing.assert_allclose(own, stock, rtol=1e-5, atol=1e-6)
    kind = ipu.keras.ModelLayerPipelineStageAssignment
    assert found == [
        kind(model.first, 0, 0, []),
        kind(model.second, 0, 1, [model.first]),
    ]
    model.save(tmp_path / "model.keras")
    known = {"Subclassed": Subclassed}
    with strategy_scope():
        again = keras.models.load_model(tmp_path / "model.keras", custom_objects=known)
        stages = [entry.pipeline_stage for entry in again.get_pipeline_stage_assignment()]
    assert stages == [0, 1]


@pytest.mark.filterwarnings("ignore:`build..` was called on layer")
def test_stages_of_a_subclassed_model_are_set_when_it_is_built(configure, data):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.all = [keras.layers.Dense(3) for _ in range(3)]

        def call(self, inputs):
            for layer in self.all:
                inputs = layer(inputs)
            return inputs

    configure(2)
    with strategy_scope():
        model = compiled(Own(), 4)
        model.set_pipelining_options(4)
        model.build((None, 4))
        found = model.get_pipeline_stage_assignment()
        assert [entry.pipeline_stage for entry in found] == [None] * 3
        with pytest.raises(ValueError, match="Set its pipeline_stage"):
            model.set_pipeline_stage_assignment(found)
        for entry, stage in zip(found, (0, 1, 1), strict=True):
            entry.pipeline_stage = stage
        model.set_pipeline_stage_assignment(found)
        model.fit(*data, batch_size=2, verbose=0)
        model.print_pipeline_stage_assignment_summary()
    with pytest.raises(ValueError, match=r"found for inputs of shape \(None, 4\)"):
        model.predict(np.zeros((2, 5), "float32"), verbose=0)


def test_layers_that_come_later_need_stages_anew(configure, data, caplog):
    configure(2)
    with strategy_scope():
        model = compiled(sequential(), 4)
        model.set_pipelining_options(4)
        model.set_pipeline_stage_assignment([0, 1])
        model.add(keras.layers.Dense(1))
    with pytest.raises(ValueError, match="stages for 2 layers, but has 3 now"):
        model.fit(*data, batch_size=2, verbose=0)
    np.testing.assert_array_equal(model(data[0]).shape, (32, 1))  # a call knows no stages
    assert [a.pipeline_stage for a in model.get_pipeline_stage_assignment()] == [None] * 3
    assert "has other layers" in caplog.text
    model.set_pipeline_stage_assignment([0, 1, 1])
    model.fit(*data, batch_size=2, verbose=0)


def test_one_stage_is_no_pipeline(configure, data):
    configure(2)
    with strategy_scope():
        inputs = keras.Input((4,))
        with ipu.keras.PipelineStage(0):
            outputs = keras.layers.Dense(1)(inputs)
        model = compiled(keras.Model(inputs, outputs))
        model.set_pipelining_options(4)
    with pytest.raises(ValueError, match=r"are in PipelineStage\(0\)\. Use two stages or more"):
        model.fit(*data, batch_size=2, verbose=0)
    model.reset_pipeline_stage_assignment()
    model.fit(*data, batch_size=2, verbose=0)


@pytest.mark.parametrize("wrap", [lambda own: own, keras.optimizers.LossScaleOptimizer])
def test_refuses_an_optimizer_whose_own_way_would_be_bypassed(configure, data, wrap):
    class Own(keras.optimizers.SGD):
        def minimize(self, *args):
            raise AssertionError(args)

    configure(1)
    with strategy_scope():
        model = sequential()
        model.compile(wrap(Own()), "mse", steps_per_execution=4)
        model.set_gradient_accumulation_options(4)
    with pytest.raises(ValueError, match=r"Own defines minimize\(\)"):
        model.fit(*data, batch_size=2, verbose=0)


def test_refuses_a_model_that_computes_nothing(data):
    class Own(keras.Model):
        pass

    with strategy_scope():
        model = compiled(Own())
    for method in (model.fit, model.evaluate):
        with pytest.raises(NotImplementedError, match=r"Own has no call\(\)"):
            method(*data, verbose=0)


def test_options_of_stages_are_one_for_each(configure, data):
    configure(2)
    with strategy_scope():
        model = compiled(staged(), 4)
    one = [ipu.ops.pipelining_ops.PipelineStageOptions()]
    model.set_pipelining_options(4, forward_propagation_stages_poplar_options=one)
    with pytest.raises(ValueError, match="stages_poplar_options has 1 entries"):
        model.fit(*data, batch_size=2, verbose=0)


def test_optimizers_say_how_gradients_are_put_together(configure, data):
    configure(2)
    keras.utils.set_random_seed(0)
    wrapped = ipu.optimizers.CrossReplicaGradientAccumulationOptimizerV2(
        keras.optimizers.SGD(0.1), 4, reduction_method="MEAN"
    )
    with strategy_scope():
        model = sequential()
        model.compile(wrapped, "mse", steps_per_execution=4)
        model.fit(*data, batch_size=2, shuffle=False, verbose=0)
    for own, stock in zip(model.get_weights(), stock_weights(data, 16, 1), strict=True):
        np.testing.assert_allclose(own, stock, rtol=1e-5, atol=1e-6)
    with strategy_scope():
        model.compile("sgd", "mse")
    assert model.set_replication_options.__self__.engine.reduction == "sum"
