"""Runs are compiled and not executed. The devices of the target are CPUs here."""

import re

import jax
import numpy as np
import pytest
from convoy import Checkpoints, Strategy, compile_target, cpu, export, split
from convoy.compile import output
from convoy.compile.console import Console
from convoy.compile.exported import run_exported
from convoy.compile.session import compile_run
from convoy.compile.targets import parse_target
from convoy.compile_target import CompileTarget
from convoy.engine.step import shard_state
from tests.compile.networks import CLASSES, SIDE, compiled_model, data, deep

pytestmark = pytest.mark.integration

TARGET = parse_target("tpu:v5e:2x2")


@pytest.fixture(autouse=True)
def without_kernels():
    """Programs for other devices have no CPU kernels."""
    cpu.disable()
    yield
    cpu.enable()


def compile_on_cpus(run, memory=TARGET.memory):
    with Console() as console:
        opened = CompileTarget("cpus", tuple(jax.devices()), memory, 1e12, 1e11)
        return compile_run(TARGET, opened, run, console)


def test_a_run_compiles_each_program_once_and_computes_nothing(tmp_path):
    seen = {}

    def run():
        strategy = Strategy(2, gradient_accumulation=2)
        model = compiled_model(strategy)
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        x, y = data(64)
        history = model.fit(
            x, y, batch_size=4, epochs=5, validation_data=(x, y), callbacks=[checkpoints]
        )
        seen["history"], seen["outputs"] = history.history, model.predict(x, batch_size=4)
        seen["weight"] = model.trainable_variables[0]._value

    result = compile_on_cpus(run)
    assert result.fits
    assert [program.name for program in result.programs] == ["train", "evaluate", "predict"]
    train = result.programs[0]
    assert train.devices == 2
    assert train.donated_arrays == train.aliased_arrays > 10
    assert [(c.kind, c.count) for c in train.collectives] == [("all-reduce", 1)]
    assert not train.host_calls
    assert seen["history"]["loss"] == [0.0]  # one epoch, without values
    assert seen["outputs"].shape[1:] == (CLASSES,)
    assert isinstance(seen["weight"], compile_target.CompileOnlyArray)
    assert not (tmp_path / "checkpoints").exists()
    assert compile_target.target() is None
    text = output.describe(train, TARGET)
    assert text.startswith("train (fit), on 2 devices\n  memory ")
    assert "1 all-reduce of" in text
    assert output.verdict(result).startswith("Fits: train takes")
    document = output.document(result)
    assert document["fits"] is True
    assert document["programs"][0]["collectives"][0]["count"] == 1


def test_evaluation_and_prediction_exchange_nothing_but_metrics():
    def run():
        model = compiled_model(Strategy(2))
        model.evaluate(*data(64), batch_size=8)
        model.predict(data(64)[0], batch_size=8)

    evaluate, predict = compile_on_cpus(run).programs
    assert [(c.kind, c.count) for c in evaluate.collectives] == [("all-reduce", 1)]
    assert evaluate.collectives[0].bytes < 64
    assert predict.collectives == []


def test_the_stages_of_a_pipeline_are_compiled_one_by_one():
    def run():
        model = compiled_model(Strategy(4, gradient_accumulation=2))
        split(model, ["pooling"])
        model.fit(*data(64), batch_size=4)
        model.predict(data(64)[0], batch_size=4)

    result = compile_on_cpus(run)
    by_name = {program.name: program for program in result.programs}
    assert {"stage 0 forward", "stage 1 backward", "device 1 reduce"} <= set(by_name)
    assert by_name["device 0 reduce"].devices == 2
    assert [c.kind for c in by_name["device 0 reduce"].collectives] == ["all-reduce"]
    assert by_name["stage 0 forward"].collectives == []
    first, second = result.stages
    assert (first.stages, second.stages) == ((0,), (1,))
    # Weights, momentum and accumulators; statistics have none of them. Two numbers of the
    # optimizer are on the first device.
    assert first.state == 4 * (3 * (3 * 3 * 3 * 8 + 3 * 8) + 2 * 8) + 8
    assert second.state == 4 * 3 * (8 * CLASSES + CLASSES) + 8
    assert first.residuals > 2 * 4 * SIDE * SIDE * 8 * 4
    assert "Fits: device 0 of the pipeline takes" in output.verdict(result)
    assert output.describe_stages(result.stages, TARGET).count("\n") == 3


def test_stages_are_balanced_by_estimated_times(caplog):
    def run():
        model = compiled_model(Strategy(2, gradient_accumulation=2), deep)
        split(model, 2, batch_size=4)
        model.fit(*data(64), batch_size=4)

    (first, second) = compile_on_cpus(run).stages
    (message,) = [record.getMessage() for record in caplog.records if "begin" in record.msg]
    # The layers are equal, so half of them are in each stage.
    assert re.search(r"The stages of '\w+' begin with (silu3|conv4), by estimated times", message)
    assert first.state == pytest.approx(second.state, rel=0.5)


def test_sharded_weights_are_gathered_and_their_gradients_scattered(monkeypatch):
    monkeypatch.setattr(shard_state, "REPLICATED_ELEMENTS", 100)

    def run():
        model = compiled_model(Strategy(4, gradient_accumulation=2, shard="weights"))
        model.fit(*data(64), batch_size=4)
        model.evaluate(*data(64), batch_size=4)

    train, evaluate = compile_on_cpus(run).programs
    # The kernel of the convolution is the only large weight.
    counts = {collective.kind: collective.count for collective in train.collectives}
    assert counts == {"all-reduce": 1, "all-gather": 1, "reduce-scatter": 1}
    assert train.donated_arrays == train.aliased_arrays
    counts = {collective.kind: collective.count for collective in evaluate.collectives}
    assert counts == {"all-reduce": 1, "all-gather": 1}


def test_the_programs_of_an_exported_model_are_those_of_its_newest_version(tmp_path):
    model = compiled_model(Strategy(1))
    export(model, tmp_path / "model", batch_sizes=[1])
    export(model, tmp_path / "model", batch_sizes=[2, 8])
    result = compile_on_cpus(lambda: run_exported(tmp_path / "model"))
    assert [program.name for program in result.programs] == ["batch of 2", "batch of 8"]
    assert result.programs[1].flops > 2 * result.programs[0].flops > 0
    assert output.describe(result.programs[0], TARGET).startswith("batch of 2 (serve)")
    with pytest.raises(ValueError, match="nothing has no exported model"):
        compile_on_cpus(lambda: run_exported(tmp_path / "nothing"))


def test_the_default_strategy_takes_all_devices_of_the_target():
    seen = []
    result = compile_on_cpus(lambda: seen.append(Strategy().replicas))
    assert (seen, result.programs) == ([4], [])


def test_more_devices_than_the_target_has_are_an_error():
    with pytest.raises(ValueError, match="5 devices were requested, but the target cpus has 4"):
        compile_on_cpus(lambda: Strategy(5))


def test_stand_ins_are_zeros_outside_of_programs():
    (device, *_) = jax.devices()
    array = compile_target.stand_in((2, 3), np.float32, jax.sharding.SingleDeviceSharding(device))
    assert np.asarray(array).tolist() == [[0.0] * 3] * 2
    assert (array + 1).sum() == 6
    assert array.nbytes == 24
    (shard,) = array.addressable_shards
    assert shard.device == device
    assert shard.data.shape == (2, 3)
