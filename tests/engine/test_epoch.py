"""The order of device calls, transfers and callbacks in an epoch."""

import pytest
from convoy.engine.data.chunks import Chunk
from convoy.engine.epoch import StepFunctions, callbacks_per_execution, run_epoch
from convoy.engine.observer import EpochCallbacks
from convoy.engine.steps_per_execution import StepsPerExecution


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


class Recorded:
    """A feed and a runner that record what happens, on an epoch of some steps.

    Chunks have at most `longest` steps, as those of data that is streamed in blocks.
    """

    def __init__(self, steps, longest=100, is_length_known=True):
        self.left, self.longest = steps, longest
        self.steps = steps if is_length_known else None
        self.events = []

    def next(self, max_steps):
        steps = min(self.left, self.longest, max_steps)
        self.left -= steps
        return Chunk("block", (), 1, steps, steps) if steps else None

    def prefetch(self, max_steps):
        self.events.append(f"prefetch {max_steps}")

    def run(self, chunk):
        self.events.append(f"run {chunk.steps}")
        return chunk.steps

    def epoch(self, steps_per_execution, is_stopped=lambda: False, **options):
        callbacks = EpochCallbacks(
            lambda step: self.events.append(f"begin {step}"),
            lambda step, outcomes: self.events.append(f"end {step} {outcomes}"),
        )
        steps = StepsPerExecution(steps_per_execution)
        return run_epoch(self, self, callbacks, steps, is_stopped, **options)


def test_the_next_data_is_prefetched_while_the_device_computes():
    recorded = Recorded(4)
    assert recorded.epoch(2) == 4
    assert recorded.events == [
        *("begin 0", "run 2", "prefetch 2", "end 1 [2]"),
        *("begin 2", "run 2", "prefetch 2", "end 3 [2]"),
    ]


def test_the_callback_at_the_end_receives_the_outcomes_of_all_device_calls():
    recorded = Recorded(5, longest=2)
    assert recorded.epoch(4) == 5
    ends = [event for event in recorded.events if event.startswith("end")]
    assert ends == ["end 3 [2, 2]", "end 4 [1]"]


def test_device_calls_are_limited_apart_from_callbacks():
    recorded = Recorded(4)
    recorded.epoch(4, max_steps=1)
    assert [event for event in recorded.events if event.startswith("run")] == ["run 1"] * 4
    assert recorded.events[-1] == "end 3 [1, 1, 1, 1]"


def test_a_stop_ends_the_epoch_after_its_callbacks():
    recorded = Recorded(4)
    assert recorded.epoch(1, is_stopped=lambda: True) == 1
    assert recorded.events == ["begin 0", "run 1", "prefetch 1", "end 0 [1]"]


def test_an_epoch_continues_after_the_steps_that_are_done():
    recorded = Recorded(2)
    assert recorded.epoch(2, done=3) == 5
    assert recorded.events == ["begin 3", "run 2", "prefetch 2", "end 4 [2]"]


@pytest.mark.parametrize(("known", "events"), [(True, ["begin 0"]), (False, [])])
def test_without_data_a_callback_begins_only_if_the_length_was_known(known, events):
    recorded = Recorded(0, is_length_known=known)
    assert recorded.epoch(1) == 0
    assert recorded.events == events


@pytest.mark.parametrize(("steps_per_execution", "numbers"), [(4, [3, 7]), ("auto", [3, 4])])
def test_a_short_last_execution_has_the_batch_number_of_a_complete_one(
    steps_per_execution, numbers
):
    found = []
    functions = StepFunctions(
        begin=lambda step: None,
        batch_end=lambda step, outcome: found.append((step, outcome)),
        end=lambda step, outcomes: None,
    )
    steps = StepsPerExecution(steps_per_execution)
    callbacks = callbacks_per_execution(functions, steps, join=sum)
    for first, last, outcomes in ((0, 3, [2, 2]), (4, 4, [1])):
        callbacks.begin(first)
        callbacks.end(last, outcomes)
    assert found == [(numbers[0], 4), (numbers[1], 1)]
