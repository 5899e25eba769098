import contextlib
import io
import math

import pytest
from convoy import timing
from convoy.checkpoint import callback_state
from convoy.progress_bar import Output
from convoy.train import progress_callback
from convoy.train.flags import Options
from convoy.train.learning_rate import Constant
from convoy.train.progress_callback import ProgressCallback
from convoy.train.run_folder import RunFolder
from convoy.train.run_log import RunLog
from convoy.train.run_settings import make_run_settings


@pytest.fixture
def make(tmp_path):
    """A function that makes a callback of a run of 8 updates of 10 samples in 2 epochs."""

    folders = contextlib.ExitStack()

    def make_callback(**options):
        options = Options(micro_batch_size=10, num_epochs=2, seed=1, **options)
        settings = make_run_settings(options, 40)
        log = RunLog(RunFolder(tmp_path / "run"), Output(io.StringIO()))
        log.folder.open({}, resumes=True)
        folders.enter_context(contextlib.closing(log.folder))
        callback = ProgressCallback(settings, Constant(0.5), log)
        callback.on_train_begin()
        callback.on_epoch_begin(0)
        return callback

    with folders:
        yield make_callback


def logs(loss, accuracy=0.5):
    return {"loss": loss, "training_accuracy": accuracy}


def test_metrics_are_those_of_each_call_not_of_the_epoch_so_far(make):
    callback = make(logs_per_epoch=2, ckpts_per_epoch=0)
    callback.on_train_batch_end(1, logs(4.0))
    callback.on_train_batch_end(3, logs(3.0))
    assert [row.loss for row in callback.calls] == [4.0, 2.0]
    assert [row.update for row in callback.calls] == [2, 4]
    assert [row.epoch for row in callback.calls] == [0.5, 1.0]
    assert callback.calls[0].compilation is not None
    assert callback.calls[1].compilation is None
    assert [row.loss for row in callback.log.folder.rows] == [4.0, 2.0]


def test_log_lines_are_written_when_they_are_due(make):
    callback = make(logs_per_epoch=1, ckpts_per_epoch=0)
    callback.on_train_batch_end(1, logs(4.0))
    assert callback.log.output.stream.getvalue() == ""
    callback.on_train_batch_end(3, logs(3.0))
    assert callback.log.output.stream.getvalue().startswith("batch 4: ['throughput: ")
    assert "'loss: 3.0000'" in callback.log.output.stream.getvalue()


def test_throughput_and_compilation_time_exclude_each_other(make, monkeypatch):
    clock = iter([100.0, 107.0, 109.0])
    monkeypatch.setattr(progress_callback.time, "perf_counter", lambda: next(clock))
    # 5 of the first 7 seconds are a compilation.
    monkeypatch.setattr(timing, "_compilations", lambda: [(0.0, 105.0)])
    callback = make(logs_per_epoch=2, ckpts_per_epoch=0)
    callback.on_train_batch_end(1, logs(4.0))
    callback.on_train_batch_end(3, logs(3.0))
    assert [row.throughput for row in callback.calls] == [10.0, 10.0]
    assert [row.compilation for row in callback.calls] == [5.0, None]


def test_a_long_device_call_is_followed_with_an_estimate_for_an_epoch(make, monkeypatch):
    now = [100.0]
    for clock in ("perf_counter", "monotonic"):
        monkeypatch.setattr(progress_callback.time, clock, lambda: now[0])
    monkeypatch.setattr(timing, "_compilations", list)
    callback = make(logs_per_epoch=1, ckpts_per_epoch=0)
    for now[0] in (
        110.0,  # the speed is that since then
        140.0,
        141.0,  # too early for another line
    ):
        callback.advance(1)
    assert callback.log.output.stream.getvalue() == (
        "update 2.00 of 8: 0.3 images/s; an epoch takes about 2:00\n"
    )


def test_a_loss_that_is_not_finite_stops_if_that_is_asked_for(make):
    make(ckpts_per_epoch=0).on_train_batch_end(3, logs(math.nan))
    with pytest.raises(FloatingPointError, match="the loss is nan after 4 weight updates"):
        make(fp_exceptions=True).on_train_batch_end(3, logs(math.nan))


@pytest.mark.parametrize("name", ["ProgressCallback", "Watch"])
def test_a_state_goes_on_also_under_the_earlier_name_of_the_class(make, name):
    before = make(logs_per_epoch=1, ckpts_per_epoch=0)
    before.on_train_batch_end(1, logs(4.0))
    ((entry,), arrays) = callback_state.capture([before])
    assert entry["type"] == "ProgressCallback"
    after = make(logs_per_epoch=1, ckpts_per_epoch=0)
    callback_state.restore([after], [entry | {"type": name}], arrays)
    assert after.get_state() == before.get_state()
    after.on_train_batch_end(3, logs(3.0))
    assert [row.loss for row in after.log.folder.rows] == [3.0]
