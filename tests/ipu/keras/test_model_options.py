import logging

import keras
import pytest
from convoy import ipu

Schedule = ipu.ops.pipelining_ops.PipelineSchedule
Method = ipu.gradient_accumulation.GradientAccumulationReductionMethod


@pytest.fixture
def model():
    with ipu.ipu_strategy.IPUStrategy().scope():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)])


@pytest.fixture
def settings(model):
    return model.set_replication_options.__self__


def test_a_count_that_is_not_given_stays(model, settings):
    model.set_gradient_accumulation_options(4)
    model.set_gradient_accumulation_options(gradient_accumulation_reduction_method=Method.MEAN)
    assert (settings.accumulation.gradient_accumulation, settings.accumulation.method) == (
        4,
        Method.MEAN,
    )
    model.set_pipelining_options(8)
    model.set_pipelining_options()
    assert (settings.pipeline.gradient_accumulation, settings.accumulation.method) == (
        8,
        Method.SUM,
    )


def test_named_arguments_that_are_not_given_stay_and_others_are_replaced(model, settings):
    replaced = {
        "pipeline_schedule": Schedule.Interleaved,
        "gradient_accumulation_dtype": "float16",
    }
    model.set_pipelining_options(4, [1, 0], True, **replaced)
    model.set_pipelining_options(8)
    assert (settings.pipeline.gradient_accumulation, settings.pipeline.device_mapping) == (
        8,
        [1, 0],
    )
    assert settings.accumulate_outfeed
    assert (settings.pipeline.schedule, settings.pipeline.dtype) == (Schedule.Grouped, None)
    model.set_pipelining_options(device_mapping=[0, 1], accumulate_outfeed=False)
    assert settings.pipeline.device_mapping == [0, 1]
    assert not settings.accumulate_outfeed


@pytest.mark.parametrize("name", ["opt", "num_mini_batches", "experimental_normalize_gradients"])
def test_the_accumulating_optimizer_is_made_here(model, name):
    with pytest.raises(ValueError, match=rf"options\(\) does not take '{name}'"):
        model.set_gradient_accumulation_options(2, **{name: 1})


def test_state_that_stays_is_not_divided(model):
    with pytest.raises(ValueError, match="which is False"):
        model.set_gradient_accumulation_options(
            2, replicated_optimizer_state_sharding=True, offload_weight_update_variables=False
        )


def test_gradients_add_up_in_a_type(model):
    with pytest.raises(ValueError, match=r"dtype='half' is not a dtype\. Pass 'float32'"):
        model.set_gradient_accumulation_options(2, dtype="half")


def test_names_once_what_has_no_effect(model, caplog):
    for _ in range(2):
        model.set_gradient_accumulation_options(
            2, use_v2_gradient_accumulation_optimizer=True, offload_weight_update_variables=True
        )
    (said,) = caplog.records
    assert said.getMessage().endswith(
        "set_gradient_accumulation_options: offload_weight_update_variables, "
        "use_v2_gradient_accumulation_optimizer."
    )


@pytest.mark.parametrize(
    ("queue", "name"),
    [
        ("infeed", "dataset"),
        ("infeed", "infeed_spec"),
        ("infeed", "element_spec"),
        ("infeed", "_internal_id"),
        ("outfeed", "outfeed_mode"),
        ("outfeed", "device_ordinal"),
    ],
)
def test_queues_are_made_by_keras(model, queue, name):
    with pytest.raises(ValueError, match=f"does not take '{name}'. It takes "):
        getattr(model, f"set_{queue}_queue_options")(**{name: 1})


def test_the_type_of_sums_reaches_the_engine(model, settings, rng):
    model.compile("sgd", "mse", steps_per_execution=2)
    model.set_gradient_accumulation_options(2, dtype="float16")
    x = rng.normal(size=(4, 2)).astype("float32")
    model.fit(x, x[:, :1], batch_size=2, verbose=0)
    engine = settings.native["set_pipelining_options"].__self__
    assert engine.host_loop.current.accumulation_dtype == "float16"


def staged():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])


@pytest.fixture
def saved(configure, tmp_path):
    configure(2)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = staged()
        model.compile("sgd", "mse")
        model.set_gradient_accumulation_options(3)
        model.set_pipelining_options(
            4,
            device_mapping=[1, 0],
            accumulate_outfeed=True,
            gradient_accumulation_reduction_method="mean",
            pipeline_schedule=Schedule.Interleaved,
        )
        model.set_pipeline_stage_assignment([0, 1])
        model.set_asynchronous_callbacks(True)
        model.set_replication_options("SUM")
        model.set_infeed_queue_options(prefetch_depth=2)
        model.save(tmp_path / "model.keras")
    return tmp_path / "model.keras"


def test_options_are_there_again_inside_of_a_scope(saved, caplog):
    said = [record.message for record in caplog.get_records("setup")]
    assert any("not saved. Call it again after loading" in line for line in said)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = keras.models.load_model(saved)
    options = model.set_replication_options.__self__
    assert options.accumulation.gradient_accumulation == 3
    assert options.pipeline.gradient_accumulation == 4
    assert options.pipeline.device_mapping == [1, 0]
    assert options.pipeline.schedule == Schedule.Grouped
    assert options.accumulation.method.name == options.pipeline.method.name == "MEAN"
    assert options.metric_method.name == "SUM"
    assert options.accumulate_outfeed
    assert options.asynchronous
    assert options.infeed_options == {"prefetch_depth": 2}
    assert [a.pipeline_stage for a in model.get_pipeline_stage_assignment()] == [0, 1]


def test_stock_keras_reads_the_same_file(saved, caplog):
    caplog.set_level(logging.WARNING)
    caplog.clear()
    model = keras.models.load_model(saved)
    assert not hasattr(model, "get_pipeline_stage_assignment")
    assert model.compiled
    assert not caplog.records


def test_a_file_of_stock_keras_has_no_options(tmp_path):
    staged().save(tmp_path / "model.keras")
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = keras.models.load_model(tmp_path / "model.keras")
    assert model.set_replication_options.__self__.accumulation.gradient_accumulation == 1
