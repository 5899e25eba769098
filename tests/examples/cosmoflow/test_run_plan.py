"""The arithmetic of samples, steps, device calls and epochs."""

from pathlib import Path

import pytest

from cosmoflow.command_line import overridden
from cosmoflow.run_plan import make_plan
from cosmoflow.sections import read_yaml
from cosmoflow.settings import Settings
from cosmoflow.throughput import Throughput

GRAPHCORE = Path(__file__).parents[3] / "examples" / "cosmoflow" / "configs" / "graphcore.yaml"


def plan(**overrides):
    changed = {f"ipu_config.{name}": value for name, value in overrides.items()}
    for name in ("n_train", "micro_batch_size", "n_epochs"):
        if f"ipu_config.{name}" in changed:
            changed[f"data.{name}"] = changed.pop(f"ipu_config.{name}")
    return make_plan(Settings.of(overridden(read_yaml(GRAPHCORE), changed)))


@pytest.mark.parametrize(
    ("overrides", "steps", "calls"),
    [
        ({}, 300_000, 60),
        ({"num_ipus": 2}, 150_000, 30),
        ({"iterations_per_loop": 10_000}, 300_000, 30),
        ({"micro_batch_size": 4}, 75_000, 30),
        ({"n_train": 6, "n_epochs": 2, "iterations_per_loop": 4}, 12, 4),
    ],
)
def test_steps_and_device_calls_of_the_run(overrides, steps, calls):
    made = plan(**overrides)
    assert (made.steps, made.calls) == (steps, calls)


def test_stages_take_devices_and_accumulation_takes_steps():
    made = plan(num_ipus=2, stages=3, gradient_accumulation=4, iterations_per_loop=8)
    assert made.devices == 6
    assert made.batch.global_batch == 8
    assert made.updates_per_epoch == 1250


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"num_ipus": 3}, r"n_train 10000 is not whole weight updates of 3 .* Set it to 9999"),
        ({"n_train": 2, "micro_batch_size": 4}, r"n_train 2 is not whole .* Set it to 4"),
        (
            {"gradient_accumulation": 8, "iterations_per_loop": 12},
            r"iterations_per_loop 12 is not a multiple of gradient_accumulation 8\. Set it to 16",
        ),
    ],
)
def test_what_does_not_divide_is_refused(overrides, problem):
    with pytest.raises(ValueError, match=problem):
        plan(**overrides)


def test_the_first_device_call_is_a_warm_up():
    throughput = Throughput(plan(num_ipus=2))
    for steps, seconds in ((5000, 100.0), (5000, 40.0), (2500, 10.0)):
        throughput.add(steps, seconds)
    assert throughput.warm_up == 100
    assert throughput.table == [
        "Iteration, Batches/Second, Samples/Second",
        "1, 125.000, 250.000",
        "2, 250.000, 500.000",
    ]
    assert throughput.final_line == (
        "Took 0.833 minutes, i.e. 300.00 samples per second for batch-size 1 and no. IPUs = 2"
    )


def test_a_run_of_one_device_call_has_no_other():
    throughput = Throughput(plan())
    throughput.add(10, 2.0)
    assert throughput.table[1:] == ["1, 5.000, 5.000"]
