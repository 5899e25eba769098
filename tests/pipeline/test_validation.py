"""Every kind of mutation of a valid schedule is rejected, and the error points at the action."""

from dataclasses import replace

import pytest
from convoy.pipeline import Action, Schedule, ScheduleError, generate, validate


def edited(schedule: Schedule, edit) -> Schedule:
    rows = [list(row) for row in schedule.actions]
    edit(rows)
    return replace(schedule, actions=tuple(map(tuple, rows)))


def rejected(schedule: Schedule) -> ScheduleError:
    with pytest.raises(ScheduleError) as error:
        validate(schedule)
    return error.value


PLAIN = generate("1f1b", 2, 3)
SPLIT = generate("zero-bubble", 2, 3)


@pytest.mark.parametrize("text", ["0F1", "1F0"])
def test_a_missing_forward_pass(text):
    action = Action.parse(text)
    error = rejected(edited(PLAIN, lambda rows: rows[action.stage].remove(action)))
    assert f"forward pass of micro-batch {action.micro_batch} of stage {action.stage}" in str(error)


def test_a_missing_backward_pass():
    error = rejected(edited(PLAIN, lambda rows: rows[1].remove(Action.parse("1B2"))))
    assert "The backward pass of micro-batch 2 of stage 1 is missing" in str(error)


@pytest.mark.parametrize(("text", "half"), [("0W1", "weights"), ("0I1", "input")])
def test_a_missing_half_of_a_backward_pass(text, half):
    error = rejected(edited(SPLIT, lambda rows: rows[0].remove(Action.parse(text))))
    assert f"The gradient of the {half} of micro-batch 1 of stage 0 is missing" in str(error)


def test_an_action_that_is_duplicated():
    error = rejected(edited(PLAIN, lambda rows: rows[0].append(Action.parse("0F1"))))
    assert "0F1 is duplicated" in str(error)
    assert error.at == (0, 6)
    assert ">>0F1<<" in str(error)


def test_an_action_on_another_device():
    def move(rows):
        rows[0].remove(Action.parse("0B2"))
        rows[1].append(Action.parse("0B2"))

    error = rejected(edited(PLAIN, move))
    assert "0B2 belongs on device 0 but is on device 1" in str(error)


@pytest.mark.parametrize(
    ("text", "what"), [("7F0", "stage 7"), ("0F9", "micro-batch 9")], ids=["stage", "micro-batch"]
)
def test_an_action_of_something_that_does_not_exist(text, what):
    error = rejected(edited(PLAIN, lambda rows: rows[0].append(Action.parse(text))))
    assert f"There is no {what} for {text} on device 0" in str(error)


def test_a_backward_pass_before_its_forward_pass():
    def swap(rows):
        rows[1][0], rows[1][1] = rows[1][1], rows[1][0]

    error = rejected(edited(PLAIN, swap))
    assert "1B0 comes before 1F0, which it needs, on device 1" in str(error)
    assert error.at == (1, 0)


def test_gradients_of_weights_before_those_of_the_input():
    def swap(rows):
        first, second = (rows[1].index(Action.parse(text)) for text in ("1I0", "1W0"))
        rows[1][first], rows[1][second] = rows[1][second], rows[1][first]

    assert "1W0 comes before 1I0, which it needs," in str(rejected(edited(SPLIT, swap)))


def test_devices_that_wait_for_each_other():
    def wait(rows):
        rows[0].remove(Action.parse("0F1"))
        rows[0].insert(rows[0].index(Action.parse("0B0")) + 1, Action.parse("0F1"))
        rows[1].remove(Action.parse("1B0"))
        rows[1].insert(rows[1].index(Action.parse("1F1")) + 1, Action.parse("1B0"))

    error = rejected(edited(PLAIN, wait))
    assert "Devices wait for each other: 0B0 for 1B0 on device 0" in str(error)


def test_a_backward_pass_that_is_whole_and_split():
    def add(rows):
        rows[0] += [Action.parse("0I0"), Action.parse("0W0")]

    assert "exists whole and split" in str(rejected(edited(PLAIN, add)))


def test_backward_passes_of_both_kinds():
    def join(rows):
        rows[0].remove(Action.parse("0W2"))
        rows[0][rows[0].index(Action.parse("0I2"))] = Action.parse("0B2")

    assert "is whole, those of others are split" in str(rejected(edited(SPLIT, join)))
