"""Progress from inside of long device calls: their lengths, and what is reported."""

import contextlib
import threading

import convoy
import keras
import numpy as np
import pytest
from convoy.engine import progress
from convoy.engine.program import WholeModelRunner
from convoy.engine.progress import RunLengths


class Seen:
    def __init__(self):
        self.micro_batches = []
        self.compiled = threading.Event()

    def advance(self, micro_batches):
        self.micro_batches.append(micro_batches)

    def note_compilation(self):
        self.compiled.set()


def lengths_of(steps, step_seconds, *, is_block=False):
    """The lengths of the device calls of a chunk, for a program whose speed is known."""
    lengths, left, found = RunLengths(), steps, []
    lengths.note(60.0)
    lengths.note(step_seconds)
    while left:
        found.append(lengths.next(steps, left, is_block=is_block))
        left -= found[-1]
    return found


def test_the_first_two_calls_have_one_step_and_give_the_speed():
    lengths = RunLengths()
    assert lengths.next(100, 100, is_block=False) == 1
    lengths.note(60.0)
    assert not lengths.is_measured()
    assert lengths.next(100, 99, is_block=False) == 1
    lengths.note(0.1)
    assert lengths.is_measured()
    assert lengths.next(100, 98, is_block=False) == 10


def test_a_call_takes_about_a_second_and_none_is_short():
    assert lengths_of(35, 0.1) == [10, 10, 15]
    assert lengths_of(1000, 0.0005) == [1000]
    assert lengths_of(3, 5.0) == [1, 1, 1]


def test_a_block_of_streamed_data_is_divided_into_few_calls():
    found = lengths_of(1000, 0.1, is_block=True)
    assert len(found) <= progress.MAX_RUNS_OF_BLOCK
    assert sum(found) == 1000


@pytest.fixture
def make(monkeypatch):
    """A function that makes a model, any work of which is worth dividing."""
    monkeypatch.setattr(progress, "SMALL_WORK", 0)
    # Every step takes long.
    monkeypatch.setattr(progress, "RUN_SECONDS", 1e-9)

    def make_model(**settings):
        keras.utils.set_random_seed(0)
        with convoy.Strategy(**settings).scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
            model.compile("adam", "mse", metrics=["mae"], steps_per_execution=8)
        return model

    return make_model


def data(samples=48):
    rng = np.random.default_rng(0)
    return rng.normal(size=(samples, 3)).astype("float32"), np.ones((samples, 2), "float32")


@pytest.mark.parametrize("settings", [{}, {"data_budget": 0}, {"gradient_accumulation": 2}])
def test_a_divided_call_has_the_same_result(make, monkeypatch, settings):
    divided = make(**settings).fit(*data(), batch_size=2, epochs=2, verbose=0).history
    monkeypatch.setattr(progress, "SMALL_WORK", 10_000_000)
    whole = make(**settings).fit(*data(), batch_size=2, epochs=2, verbose=0).history
    assert divided == whole


def test_an_observer_is_notified_of_all_but_the_last_call(make):
    model, seen = make(devices=2), Seen()
    with progress.reported_to(seen):
        model.fit(*data(), batch_size=2, verbose=0)
    # 12 steps in two executions, of 8 and 4: each call but the last one of an execution.
    assert seen.micro_batches == [2] * (7 + 3)


def test_nothing_is_kept_without_an_observer(make):
    make().fit(*data(), batch_size=2, verbose=0)
    assert not progress._unfinished


def test_a_prediction_is_one_call(make, monkeypatch):
    calls = []
    run = WholeModelRunner.run
    monkeypatch.setattr(
        WholeModelRunner, "run", lambda self, chunk: calls.append(chunk.steps) or run(self, chunk)
    )
    seen = Seen()
    with progress.reported_to(seen):
        make().predict(data()[0], batch_size=2, verbose=0)
    assert calls == [8, 8, 8]
    assert seen.micro_batches == []


def test_keras_progress_bar_shows_the_steps_of_a_running_call(make, capsys):
    make().fit(*data(), batch_size=2, verbose=1)
    shown = capsys.readouterr().out
    # The first call of a step compiles, which takes longer than Keras's time between two updates.
    assert " 1/24" in shown
    assert shown.index(" 1/24") < shown.index("24/24")


def test_a_long_compilation_is_noted(monkeypatch):
    monkeypatch.setattr(progress, "RUN_SECONDS", 0.0)
    seen = Seen()
    with progress.reported_to(seen), progress.compiling():
        assert seen.compiled.wait(60)


def test_only_programs_that_are_new_are_noted_as_compiled(make, monkeypatch):
    compiled = []

    @contextlib.contextmanager
    def count():
        compiled.append("program")
        yield

    monkeypatch.setattr(progress, "compiling", count)
    model = make()
    model.fit(*data(48), batch_size=2, verbose=0)
    model.fit(*data(48), batch_size=2, verbose=0)
    assert len(compiled) == 1
    model.fit(*data(32), batch_size=2, verbose=0)
    assert len(compiled) == 2


def test_work_that_cannot_take_long_is_one_run(make, monkeypatch):
    monkeypatch.setattr(progress, "SMALL_WORK", 1_000_000)
    monkeypatch.setattr(RunLengths, "next", lambda *_, **__: pytest.fail("was divided"))
    make().fit(*data(), batch_size=2, verbose=0)
