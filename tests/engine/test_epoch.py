"""The order of device calls, transfers and callbacks in an epoch, and Ctrl-C between them."""

import signal

import convoy
import keras
import numpy as np
import pytest
from convoy import keras_bridge
from convoy.engine.data.chunks import Chunk
from convoy.engine.epoch import StepFunctions, Uninterrupted, callbacks_per_execution, run_epoch
from convoy.engine.observer import EpochCallbacks
from convoy.engine.program import WholeModelRunner
from convoy.engine.steps_per_execution import StepsPerExecution


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

    def epoch(self, steps_per_execution, stops=False, **options):
        def begin(step):
            self.events.append(f"begin {step}")

        def end(step, outcomes):
            self.events.append(f"end {step} {outcomes}")
            return stops

        steps = StepsPerExecution(steps_per_execution)
        return run_epoch(self, self, EpochCallbacks(begin, end), steps, **options)


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
    assert recorded.epoch(1, stops=True) == 1
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
        end=lambda step, outcomes: False,
    )
    steps = StepsPerExecution(steps_per_execution)
    callbacks = callbacks_per_execution(functions, steps, join=sum)
    for first, last, outcomes in ((0, 3, [2, 2]), (4, 4, [1])):
        callbacks.begin(first)
        callbacks.end(last, outcomes)
    assert found == [(numbers[0], 4), (numbers[1], 1)]


@pytest.fixture
def heeds_ctrl_c():
    """What a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def uninterrupted(seen, interrupts, error=None):
    with Uninterrupted():
        for _ in range(interrupts):
            interrupt()
        if error is not None:
            raise error
        seen.append("went on")


def test_an_interrupt_waits_for_the_end_of_the_block(heeds_ctrl_c):
    seen = []
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(seen, 1)
    assert seen == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_does_not_wait(heeds_ctrl_c):
    seen = []
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(seen, 2)
    assert seen == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_the_block_comes_before_an_interrupt(heeds_ctrl_c):
    with pytest.raises(ValueError, match="mine"):
        uninterrupted([], 1, ValueError("mine"))


def test_ctrl_c_after_a_device_call_leaves_the_outcome_in_the_model(heeds_ctrl_c, monkeypatch):
    """The values were given to the device call, and its outcome is not in the model yet."""
    with convoy.Strategy(devices=1).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    model.fit(x, y, batch_size=4, verbose=0)
    before = model.get_weights()

    run_program = WholeModelRunner._program

    def interrupted_program(self, chunk):
        program = run_program(self, chunk)

        def then_interrupt(*args):
            outcome = program.run(*args)
            interrupt()
            return outcome

        return program._replace(run=then_interrupt)

    monkeypatch.setattr(WholeModelRunner, "_program", interrupted_program)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=4, verbose=0)
    monkeypatch.undo()
    assert not any(value.is_deleted() for value in keras_bridge.values(model.variables))
    assert int(model.optimizer.iterations.value) == 2
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
