import pytest
from convoy.pipeline import NAMES, Action, Kind, Schedule, generate


def test_an_action_is_written_as_stage_kind_and_micro_batch():
    action = Action(2, Kind.BACKWARD_INPUT, 10)
    assert str(action) == "2I10"
    assert Action.parse(" 2I10 ") == action


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F", "-1F0", "2F0 3F0"])
def test_another_text_is_refused(text):
    with pytest.raises(ValueError, match="is not an action"):
        Action.parse(text)


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_is_read_as_it_was_written(name):
    schedule = generate(name, 4, 6, [0, 1, 0, 1])
    assert Schedule.from_csv(schedule.to_csv()) == schedule


def test_empty_cells_are_left_out():
    assert Schedule.from_csv("0F0,,0B0\n,1F0,1B0\n") == generate("sequential", 2, 1)


def test_a_stage_without_actions_is_refused():
    with pytest.raises(ValueError, match="up to stage 2, but has no action of stage 1"):
        Schedule.from_csv("0F0\n2F0\n")


def test_nothing_is_refused():
    with pytest.raises(ValueError, match="has no action"):
        Schedule.from_csv("\n")
