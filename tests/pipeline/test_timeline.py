import itertools

import convoy
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from convoy.pipeline import DURATIONS, Kind, generate, simulate, stage_durations
from convoy.pipeline.timeline import TimelineRecorder
from keras import layers
from tests.equivalence.side_by_side import assert_same, make_convoy, state


def small(steps):
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, name="a"), layers.Dense(2, name="b")]
    )
    model.compile("sgd", "mse", steps_per_execution=steps)
    return model


def train(**options):
    model = make_convoy(small, 8, devices=4, gradient_accumulation=4)
    convoy.split(model, ["b"])
    model.set_pipelining_options(**options)
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    history = model.fit(x, x[:, :2], batch_size=2, verbose=0).history
    return model, (history, state(model))


@pytest.mark.parametrize("schedule", ["zero-bubble", pytest.param("1f1b", marks=pytest.mark.slow)])
def test_a_recorded_update_is_the_schedule(schedule):
    model, outcome = train(schedule=schedule, record=True)
    timeline = model.get_pipeline_timeline()
    planned = generate(schedule, 2, 4)
    assert timeline.devices == 4  # two replicas of two stages
    for device in range(4):
        own = [event for event in timeline.events if event.device == device]
        assert tuple(event.action for event in own) == planned.actions[device % 2]
        for before, after in itertools.pairwise(own):
            assert before.start <= before.end <= after.start <= after.end
    for replica in range(2):
        row = range(2 * replica, 2 * replica + 2)
        events = {event.action: event for event in timeline.events if event.device in row}
        for event in events.values():
            assert all(events[need].end <= event.start for need in planned.needs(event.action))
    assert min(event.start for event in timeline.events) == 0
    assert timeline.peak_stash == simulate(planned).peak_stash * 2
    assert_same(outcome, train(schedule=schedule)[1], exact=True)


def test_nothing_is_recorded_unless_asked_for():
    assert train()[0].get_pipeline_timeline() is None


def test_durations_are_medians_of_each_stage_and_kind():
    schedule = generate("1f1b", 2, 3)
    slow_second = {Kind.FORWARD: [1.0, 3.0], Kind.BACKWARD: [2.0, 5.0]}
    assert stage_durations(simulate(schedule, slow_second)) == slow_second
    split = generate("zero-bubble", 2, 3)
    found = stage_durations(simulate(split))
    assert found == {kind: [DURATIONS[kind]] * 2 for kind in "FIW"}


def test_actions_that_run_alone_do_not_overlap():
    schedule = generate("1f1b", 2, 2)
    recorder = TimelineRecorder(schedule, simulate(schedule), 1, serialized=True)
    for number, event in enumerate(simulate(schedule).events):
        recorder.record(event.action, 0, float(number), jnp.zeros(()))
    events = recorder.timeline().events
    assert len(events) == 8
