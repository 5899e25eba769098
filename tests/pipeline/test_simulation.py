import itertools

import pytest
from convoy.pipeline import Kind, generate, simulate
from convoy.pipeline.simulation import peak_stash


def test_a_device_does_one_thing_at_a_time_and_nothing_before_what_it_needs():
    schedule = generate("zero-bubble", 3, 5)
    timeline = simulate(schedule, transfers=0.5)
    ends = {event.action: event.end for event in timeline.events}
    for event in timeline.events:
        for need in schedule.needs(event.action):
            way = 0.5 if schedule.mapping[need.stage] != event.device else 0.0
            assert event.start >= ends[need] + way
    for device in range(3):
        own = [event for event in timeline.events if event.device == device]
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))


def test_times_may_differ_from_stage_to_stage():
    durations = {Kind.FORWARD: [1.0, 3.0], Kind.BACKWARD: [2.0, 6.0]}
    timeline = simulate(generate("sequential", 2, 2), durations)
    assert timeline.seconds == 2 * (1 + 3 + 2 + 6)
    assert timeline.busy(1) == 18


def test_transfers_may_differ_from_border_to_border():
    schedule = generate("sequential", 3, 1)
    assert simulate(schedule, transfers=[1.0, 10.0]).seconds == 9 + 2 * 11


def test_stages_on_one_device_need_no_transfer():
    schedule = generate("sequential", 3, 1, [0, 0, 1])
    assert simulate(schedule, transfers=[100.0, 10.0]).seconds == 9 + 2 * 10


def test_without_a_backward_pass_nothing_is_held():
    assert simulate(generate("gpipe", 3, 9, trains=False)).peak_stash == (1, 1, 1)


def test_a_schedule_that_cannot_be_carried_out_is_refused():
    schedule = generate("1f1b", 2, 2)
    broken = type(schedule)(schedule.actions[::-1], schedule.mapping, 2)
    with pytest.raises(ValueError, match="belongs on device"):
        simulate(broken)


def test_a_simulation_with_default_durations_is_kept_for_its_schedule():
    assert simulate(generate("1f1b", 2, 2)) is simulate(generate("interleaved", 2, 2))


def test_what_stages_hold_is_counted_or_added_up_by_size():
    schedule = generate("1f1b", 2, 4)
    assert peak_stash(schedule) == simulate(schedule).peak_stash == (2, 1)
    assert peak_stash(schedule, [10, 7]) == (20, 7)
