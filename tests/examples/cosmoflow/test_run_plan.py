"""Step arithmetic: samples, steps, device calls and epochs."""

from pathlib import Path

import pytest
from convoy.configuration import override, read_yaml

from cosmoflow.run_plan import make_plan
from cosmoflow.settings import read_settings

GRAPHCORE = Path(__file__).parents[3] / "examples" / "cosmoflow" / "configs" / "graphcore.yaml"


def plan(**overrides):
    changed = {f"ipu_config.{name}": value for name, value in overrides.items()}
    for name in ("n_train", "micro_batch_size", "n_epochs"):
        if f"ipu_config.{name}" in changed:
            changed[f"data.{name}"] = changed.pop(f"ipu_config.{name}")
    return make_plan(read_settings(override(read_yaml(GRAPHCORE), changed)))


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
        ({"num_ipus": 3}, r"n_train 10000 is not a multiple of .* 3: .* Set it to 9999"),
        ({"n_train": 2, "micro_batch_size": 4}, r"n_train 2 is not a multiple .* Set it to 4"),
        (
            {"gradient_accumulation": 8, "iterations_per_loop": 12},
            r"iterations_per_loop 12 is not a multiple of gradient_accumulation 8\. Set it to 16",
        ),
    ],
)
def test_numbers_that_do_not_divide_are_refused(overrides, problem):
    with pytest.raises(ValueError, match=problem):
        plan(**overrides)
