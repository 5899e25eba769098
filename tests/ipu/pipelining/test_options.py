import pytest
from convoy import ipu
from convoy.ipu.enums import GradientAccumulationReductionMethod
from convoy.ipu.pipelining.options import FailedPreconditionError, PipelineOptions, read

SUM = GradientAccumulationReductionMethod.SUM
Schedule = ipu.ops.pipelining_ops.PipelineSchedule
Mode = ipu.ops.pipelining_ops.RecomputationMode


@pytest.mark.parametrize(
    ("count", "stages", "schedule"),
    [
        (8, 2, Schedule.Grouped),
        (6, 2, Schedule.Interleaved),
        (128, 4, Schedule.Grouped),
        (6, 3, Schedule.Grouped),
        (3, 3, Schedule.Interleaved),
        (1, 3, Schedule.Sequential),
    ],
)
def test_takes_counts_that_suit_the_schedule(count, stages, schedule):
    PipelineOptions(count, schedule=schedule).check(stages, ipu.config.IPUConfig())


@pytest.mark.parametrize(
    ("count", "stages", "schedule", "unit"),
    [
        (6, 2, Schedule.Grouped, 4),
        (9, 3, Schedule.Grouped, 6),
        (4, 3, Schedule.Interleaved, 3),
    ],
)
def test_refuses_counts_that_do_not(count, stages, schedule, unit):
    with pytest.raises(FailedPreconditionError, match=f"not a multiple of {unit}"):
        PipelineOptions(count, schedule=schedule).check(stages, ipu.config.IPUConfig())


def test_tiles_for_input_and_output_change_what_grouped_wants():
    config = ipu.config.IPUConfig()
    config.io_tiles.place_ops_on_io_tiles = True
    PipelineOptions(6).check(2, config)
    PipelineOptions(7).check(2, config)
    with pytest.raises(FailedPreconditionError, match="=5 is not 6 or more, with io_tiles"):
        PipelineOptions(5).check(2, config)
    with pytest.raises(FailedPreconditionError, match="not a multiple of 3"):
        PipelineOptions(4, schedule=Schedule.Interleaved).check(3, config)


def test_refuses_to_train_without_a_count():
    with pytest.raises(ValueError, match="no number of micro-batches"):
        PipelineOptions(schedule=Schedule.Sequential).check(2, ipu.config.IPUConfig())


def test_interleaved_does_not_train_on_shared_devices():
    with pytest.raises(NotImplementedError, match=r"device_mapping=\[0, 1, 0\]"):
        PipelineOptions(6, [0, 1, 0], Schedule.Interleaved).check(3, ipu.config.IPUConfig())


@pytest.mark.parametrize(
    ("mapping", "unit"), [([0, 1, 2], 3), ([0, 1, 0], 1), ([0, 1, 0, 1], 2), ([0, 0, 1, 1], 2)]
)
def test_interleaved_runs_as_many_at_a_time_as_devices_allow(mapping, unit):
    def check(count):
        options = PipelineOptions(count, mapping, Schedule.Interleaved)
        options.check(len(mapping), ipu.config.IPUConfig(), training=False)

    check(unit)
    check(2 * unit)
    if unit > 1:
        with pytest.raises(FailedPreconditionError, match=f"not a multiple of {unit}"):
            check(2 * unit + 1)


@pytest.mark.parametrize(
    ("mode", "schedule"),
    [
        (Mode.RecomputeThenBackpropagate, Schedule.Sequential),
        (Mode.RecomputeAndBackpropagateInterleaved, Schedule.Interleaved),
    ],
)
def test_refuses_to_recompute_as_the_schedule_cannot(mode, schedule):
    config = ipu.config.IPUConfig()
    options = PipelineOptions(6, None, schedule, mode)
    options.check(3, config)
    config.allow_recompute = True
    with pytest.raises(NotImplementedError, match=r"Use RecomputationMode\.Auto"):
        options.check(3, config)


@pytest.mark.parametrize("mapping", [(0, 1), [0, 1.0], [True, False], 2])
def test_a_mapping_is_a_list_of_numbers(mapping):
    with pytest.raises(ValueError, match="is not a list of ints"):
        read(None, mapping, SUM, {})


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("gradient_accumulation_count", ValueError),
        ("device_mapping", ValueError),
        ("accumulate_outfeed", ValueError),
        ("computational_stages", ValueError),
        ("repeat_count", ValueError),
        ("inputs", ValueError),
        ("infeed_queue", ValueError),
        ("outfeed_queue", ValueError),
        ("optimizer_function", ValueError),
        ("outfeed_loss", ValueError),
        ("outfeed_mask", ValueError),
        ("batch_serialization_iterations", ValueError),
        ("experimental_normalize_gradients", ValueError),
        ("pipeline_shedule", TypeError),
    ],
)
def test_refuses_options_that_are_not_its_own(name, error):
    with pytest.raises(error, match=name):
        read(None, None, SUM, {name: 1})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("pipeline_schedule", "Grouped", TypeError),
        ("recomputation_mode", 1, TypeError),
        ("forward_propagation_stages_poplar_options", [{}], TypeError),
        ("continuous_weight_updates", True, NotImplementedError),
        ("gradient_accumulation_dtype", lambda variable: "float32", NotImplementedError),
    ],
)
def test_refuses_values_that_have_no_meaning(name, value, error):
    with pytest.raises(error, match=name):
        read(None, None, SUM, {name: value})


def test_state_that_stays_is_not_divided():
    options = {
        "replicated_optimizer_state_sharding": True,
        "offload_weight_update_variables": False,
    }
    with pytest.raises(ValueError, match="which is False"):
        read(None, None, SUM, options)


def test_names_what_has_no_effect(caplog):
    found = read(
        4, [1, 0], SUM, {"offload_activations": True, "gradient_accumulation_dtype": "float32"}
    )
    assert found == PipelineOptions(4, [1, 0], dtype="float32")
    assert "offload_activations" in caplog.text
