"""The division of data into steps, and positions in it."""

import pytest
from convoy.engine import random_state
from convoy.engine.data.chunks import DataPosition, StepDivision


@pytest.mark.parametrize(
    ("division", "samples", "divides"),
    [
        (StepDivision(1), 7, True),
        (StepDivision(2), 7, False),
        (StepDivision(2), 8, True),
        (StepDivision(2, micro_batches_per_step=3), 8, False),
        (StepDivision(2, micro_batches_per_step=3), 12, True),
        (StepDivision(2, steps_per_update=3), 8, True),
    ],
)
def test_samples_divide_over_replicas_and_micro_batches(division, samples, divides):
    assert (samples % division.parts == 0) == divides


def test_steps_are_counted_until_a_position():
    assert StepDivision(1).steps_until(12, 4, end=18) == 3


def test_the_last_step_may_be_incomplete():
    assert StepDivision(1).steps_until(18, 4, end=18) == 5


@pytest.mark.parametrize(("units", "steps_per_update"), [(10, 1), (12, 2)])
def test_a_position_inside_of_a_weight_update_is_refused(units, steps_per_update):
    division = StepDivision(1, steps_per_update=steps_per_update)
    with pytest.raises(ValueError, match=f"saved after {units} .* that a weight update now takes"):
        division.steps_until(units, 4, end=18)


def test_a_position_survives_json():
    position = DataPosition(random_state.capture(), before=3, done=4, state={"epoch": 1})
    restored = DataPosition.from_json(position.to_json())
    assert restored[1:] == position[1:]
    assert restored.order.to_json() == position.order.to_json()
