import logging

import keras
import pytest
from convoy import ipu

Schedule = ipu.ops.pipelining_ops.PipelineSchedule


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
    options = model.fit.__self__
    assert options.accumulation == 3
    assert options.pipeline.count == 4
    assert options.pipeline.device_mapping == [1, 0]
    assert options.pipeline.schedule == Schedule.Grouped
    assert options.method.name == options.pipeline.method.name == "MEAN"
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
    assert model.fit.__self__.accumulation == 1
