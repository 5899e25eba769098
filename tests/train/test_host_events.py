from fractions import Fraction

import pytest
from convoy.train.flags import Options
from convoy.train.host_events import closest_divisor, make_host_events


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


UPDATES = 781
"""Of CIFAR-10 with micro-batches of 8 and 8 of them accumulated: 11 x 71."""


def plan(logs, checkpoints=None, epochs=6, updates=UPDATES, first=0.0):
    options = Options(
        num_epochs=epochs,
        logs_per_epoch=Fraction(logs),
        ckpts_per_epoch=None if checkpoints is None else Fraction(checkpoints),
        first_ckpt_epoch=first,
    )
    return make_host_events(options, updates)


def calls(events):
    return events.updates // events.per_call


@pytest.mark.parametrize(
    ("whole", "wanted", "found"),
    [
        (781, 2, 1),
        (781, 10, 11),
        (15, 4, 3),
        (60, 11, 10),
        (25, 5, 5),
        (36, 6, 6),
        (2500, 50, 50),
        (667, 29, 29),
        (2669, 29, 17),
        (7, 100, 7),
    ],
)
def test_the_closest_divisor(whole, wanted, found):
    assert closest_divisor(whole, wanted) == found


def test_one_log_per_epoch_is_one_call_per_epoch():
    events = plan(1)
    assert (events.per_call, events.per_log, calls(events)) == (UPDATES, UPDATES, 6)
    assert events.warnings == ()


def test_two_logs_per_epoch_are_not_possible_and_become_one():
    events = plan(2)
    assert (events.per_call, calls(events)) == (UPDATES, 6)
    (warning,) = events.warnings
    assert "the closest possible is 1 times" in warning


def test_ten_logs_per_epoch_become_eleven():
    events = plan(10)
    assert (events.per_call, calls(events)) == (71, 66)
    (warning,) = events.warnings
    assert "the closest possible is 11 times" in warning


@pytest.mark.parametrize(("logs", "expected"), [("1/2", 3), ("1/3", 2)])
def test_a_call_can_run_several_epochs(logs, expected):
    events = plan(logs)
    assert calls(events) == expected
    assert events.keras_epochs == expected
    assert events.warnings == ()


def test_epochs_of_a_log_that_do_not_divide_the_run_are_refused():
    with pytest.raises(
        ValueError, match=r"^It is not possible to log 2\.0 epochs a time for 5 epochs$"
    ):
        plan("1/2", epochs=5)


def test_a_49th_is_not_refused():
    assert calls(plan("1/49", epochs=49)) == 1


def test_no_logs_run_everything_in_one_call():
    events = plan(0)
    assert calls(events) == 1
    assert events.saves_at(events.updates)
    assert "the entire run" in events.warnings[0]


@pytest.mark.parametrize("logs", [1, 10, "1/2", "1/3", 0])
def test_checkpoints_that_nobody_asked_for_do_not_shorten_calls(logs):
    events = plan(logs)
    assert events.per_call == (events.per_log or events.updates)
    saved = [
        u for u in range(events.per_call, events.updates + 1, events.per_call) if events.saves_at(u)
    ]
    assert saved == list(range(events.per_checkpoint, events.updates + 1, events.per_checkpoint))
    assert len(saved) == min(6, calls(events))


def test_checkpoints_that_were_asked_for_do():
    assert calls(plan("1/2", checkpoints=1)) == 6


def test_no_checkpoints():
    events = plan(1, checkpoints=0)
    assert not any(events.saves_at(update) for update in range(1, events.updates + 1))


def test_the_first_checkpoint_sets_the_phase():
    events = plan(1, checkpoints="1/3", epochs=5, updates=1, first=2)
    assert [update for update in range(1, 6) if events.saves_at(update)] == [2, 5]


def test_a_first_checkpoint_within_an_epoch_is_met_by_a_call():
    events = plan(1, checkpoints=1, epochs=3, updates=10, first=0.5)
    assert events.per_call == 5
    assert [update for update in range(5, 31, 5) if events.saves_at(update)] == [5, 15, 25]


@pytest.mark.parametrize(
    "arguments", [{"logs": -1}, {"logs": 1, "checkpoints": -1}, {"logs": 1, "first": -1.0}]
)
def test_negative_frequencies_are_refused(arguments):
    with pytest.raises(ValueError, match="is negative"):
        plan(**arguments)


@pytest.mark.parametrize(
    ("updates", "expected"), [(667, 145), (2669, 85)], ids=["16 devices", "4 devices"]
)
def test_the_benchmarks_of_resnet50(updates, expected):
    assert calls(plan(29, checkpoints=0, epochs=5, updates=updates)) == expected
