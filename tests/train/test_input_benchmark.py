"""The throughput of the input pipeline."""

import pytest
from convoy.train import input_benchmark
from convoy.train.flags import Options
from convoy.train.input_benchmark import measure_input

DIGITS = {"dataset": "digits", "micro_batch_size": 32, "seed": 1}


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(input_benchmark, "SECONDS", 0.05)


def test_whole_batches_are_counted_for_the_given_time():
    images, seconds = measure_input(Options(mixup=0.2, **DIGITS))
    assert images > 0
    assert images % 32 == 0
    assert 0.05 <= seconds < 5


def test_data_that_is_moved_once_needs_nothing_of_the_host():
    assert measure_input(Options(**DIGITS)) is None


def test_the_data_begins_again_after_an_epoch(monkeypatch):
    drawn = []

    class Counting:
        num_batches = 2

        def __getitem__(self, number):
            drawn.append(number)

        def on_epoch_end(self):
            drawn.append("end")

    monkeypatch.setattr(input_benchmark, "WARM_UP", 5)
    monkeypatch.setattr(input_benchmark, "SECONDS", 0.0)
    batches = input_benchmark._batches(Counting())
    assert input_benchmark._measure(batches, 8)[0] == 0
    assert drawn == [0, 1, "end", 0, 1, "end", 0]


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="nothing to do"):
        measure_input(Options(training=False, validation=False, **DIGITS))
