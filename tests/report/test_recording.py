import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy import cpu
from convoy.engine.observer import NULL_OBSERVER, EpochCallbacks, Observer
from convoy.report.figures import figures
from convoy.report.files import ReportError, read
from convoy.report.recording import Recording
from tests.report.conftest import BATCH, CALL, EPOCHS, HELD_OUT, SAMPLES, data, train

pytestmark = pytest.mark.integration

# Multiplications and additions of the two convolutions, forwards.
STEM = 2 * BATCH * 12 * 12 * 4 * 3 * 9
DOWN = 2 * BATCH * 6 * 6 * 8 * 4 * 9


def values(report):
    return {figure.id: figure.value for figure in figures(report)}


def test_every_program_is_described(recorded):
    _, _, report = recorded
    train, evaluate = report.programs
    assert (train["name"], evaluate["name"]) == ("train", "evaluate")
    assert set(train["seconds"]) == {"trace", "lower", "compile"}
    assert min(train["seconds"].values()) > 0
    assert train["memory"]["temp"] > 0
    weights = report.run["runs"][0]["model"]["bytes"]["weights"]
    assert train["memory"]["alias"] >= 2 * weights  # and the momentum
    # The gradient of the input of the first convolution is not computed.
    assert 2 * STEM + 3 * DOWN < train["flops"] < 1.2 * (2 * STEM + 3 * DOWN)
    assert STEM + DOWN < evaluate["flops"] < 1.2 * (STEM + DOWN)
    assert train["flops_by_part"]["backward"] > train["flops_by_part"]["forward"]


def test_every_convolution_has_its_layer_and_kernel(recorded):
    _, _, report = recorded
    found = [(c["layer"], c["kind"]) for c in report.programs[0]["convolutions"]]
    if cpu.status().native:
        kernels = {c["kernel"] for p in report.programs for c in p["convolutions"]}
        assert "XLA" not in kernels
        assert all(c["implementation"] for c in report.programs[0]["convolutions"])
        assert sorted(found) == [
            ("down", "forward"),
            ("down", "gradient of the input"),
            ("down", "gradient of the weights"),
            ("stem", "forward"),
            ("stem", "gradient of the weights"),
        ]
    assert [c["layer"] for c in report.programs[1]["convolutions"]] == ["stem", "down"]
    work = [c["flops"] for c in report.programs[0]["convolutions"]]
    assert sum(work) == 2 * STEM + 3 * DOWN


def test_the_run_adds_up(recorded):
    _, history, report = recorded
    totals = report.run["totals"]
    steps = EPOCHS * SAMPLES // BATCH
    assert totals["devices"]["train"]["steps"] == steps
    assert totals["devices"]["train"]["calls"] == steps // CALL
    assert totals["devices"]["train"]["samples"] == EPOCHS * SAMPLES
    assert totals["devices"]["evaluate"]["samples"] == EPOCHS * HELD_OUT
    assert totals["programs"]["0"]["times"] == steps
    assert totals["host"]["checkpoint"]["count"] == EPOCHS
    assert set(totals["host"]) >= {"input", "prefetch", "device call", "callbacks", "compile"}
    assert report.run["state"] == "ended"
    assert len(report.parts["calls"]) == totals["devices"]["train"]["calls"] + EPOCHS
    for mode, number, begin, end, *_ in report.parts["calls"]:
        assert report.programs[number]["name"] == mode
        assert 0 <= begin <= end <= report.run["seconds"]
    for number, (epoch, _, logs) in enumerate(report.parts["epochs"]):
        assert epoch == number
        for name in ("loss", "val_loss", "accuracy", "val_accuracy"):
            assert logs[name] == pytest.approx(history[name][number], rel=1e-6)


def test_device_calls_do_not_overlap(recorded):
    calls = recorded[2].parts["calls"]
    assert all(before[3] <= after[2] for before, after in itertools.pairwise(calls))


def test_recording_changes_no_bit(recorded):
    model, history, _ = recorded
    plain, alike, _ = train(convoy.Strategy(devices=1))
    assert history == alike
    for own, other in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(own.numpy(), other.numpy())


def test_stages_are_timed_beside_a_simulation(staged):
    _, _, report = staged
    update = report.parts["pipelines"][-1]
    assert (update["stages"], update["micro_batches"]) == (2, CALL)
    for kind in ("measured", "simulated"):
        actions = {action for _, action, _, _ in update[kind]["events"]}
        assert actions == {f"{s}{k}{m}" for s in (0, 1) for k in "FB" for m in range(CALL)}
        assert 0 <= update[kind]["bubble"] < 1
    names = {program["name"] for program in report.programs}
    assert names >= {"stage 0 forward", "stage 1 backward", "device 0 update", "stage 1 evaluate"}
    for program in report.programs:
        layers = {c["layer"] for c in program["convolutions"]}
        assert layers <= {"stem" if program["name"].startswith("stage 0") else "down"}
    # What stages compute is what the whole model computes.
    work = values(report)["train.step_flops"]
    assert 2 * STEM + 3 * DOWN < work < 1.2 * (2 * STEM + 3 * DOWN)


def test_nothing_is_in_between_when_nothing_is_recorded():
    off = Observer()
    program, feed, callbacks, epochs = object(), object(), (print, print), []
    assert off.program("train", program) is program
    assert off.runner("train", program) is program
    assert off.epoch("train", program, feed, callbacks) == (program, feed, callbacks)
    off.end_epoch(lambda epoch, logs: epochs.append((epoch, logs)), 2, {"loss": 1.0})
    assert epochs == [(2, {"loss": 1.0})]


def test_records_only_while_it_is_open(recorded, tmp_path):
    model, _, _ = recorded
    strategy = convoy.Strategy(devices=1)
    model = convoy.prepare(model, strategy)
    x, _ = data()
    first = strategy.record(tmp_path / "a")
    model.predict(x, batch_size=BATCH, verbose=0)
    strategy.record(tmp_path / "b").close()
    assert strategy.observer is NULL_OBSERVER
    first.close()
    model.predict(x, batch_size=BATCH, verbose=0)
    report = read(tmp_path / "a")
    assert [run["name"] for run in report.run["runs"]] == ["predict"]
    assert report.run["totals"]["devices"]["predict"]["samples"] == len(x)
    assert report.parts["metrics"] == []
    assert read(tmp_path / "b").run["runs"] == []


def test_the_wait_for_a_device_is_no_time_of_the_callbacks(tmp_path):
    with Recording(tmp_path, jax.devices()[:1]) as recording:

        def reads_a_metric(step, outcomes):
            recording._waiter.ended = time.perf_counter()

        begin, end = recording.epoch(
            "train", None, None, EpochCallbacks(lambda step: None, reads_a_metric)
        )[2]
        begin(0)
        end(3, [{"loss": jax.numpy.zeros(())}])
    assert recording._log.totals["callbacks"]["count"] == 2
    spans = read(tmp_path).parts["spans"]
    assert [kind for kind, *_ in spans] == ["callbacks", "wait", "callbacks"]
    assert spans[1][2] == spans[2][1]  # the callback's own time begins when the device has ended


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise RuntimeError("the cable was pulled")


def test_a_run_that_fails_says_so(recorded, tmp_path):
    model, _, _ = recorded
    strategy = convoy.Strategy(devices=1)
    model = convoy.prepare(model, strategy)
    x, y = data()
    with pytest.raises(RuntimeError), strategy.record(tmp_path):
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[Fails()])
    report = read(tmp_path)
    assert report.run["state"] == "failed"
    assert report.run["runs"][0]["error"] == "RuntimeError: the cable was pulled"
    assert len(report.parts["calls"]) == 1


class Interrupts(keras.callbacks.Callback):
    """Presses Ctrl-C once, and waits until that was heard."""

    def __init__(self, checkpoints):
        super().__init__()
        self.checkpoints = checkpoints

    def on_train_batch_end(self, batch, logs=None):
        signal.raise_signal(signal.SIGINT)
        while self.checkpoints._preemption.signal is None:
            time.sleep(0.001)


def test_a_run_that_was_told_to_leave_has_stopped_and_not_failed(recorded, tmp_path):
    model, _, _ = recorded
    strategy = convoy.Strategy(devices=1)
    model = convoy.prepare(model, strategy)
    x, y = data()
    checkpoints = convoy.Checkpoints(tmp_path / "checkpoints")
    interrupted = [Interrupts(checkpoints), checkpoints]
    with pytest.raises(SystemExit), strategy.record(tmp_path / "report"):
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=interrupted)
    run = read(tmp_path / "report").run
    assert (run["state"], run["error"], run["runs"][0]["error"]) == ("stopped", "", "")
    assert run["runs"][0]["stopped"].startswith("Stopped by SIGINT")
    # It goes on in the same process, and is recorded once more.
    with strategy.record(tmp_path / "report"):
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[checkpoints])
    assert read(tmp_path / "report").run["state"] == "ended"


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    strategy = convoy.Strategy(devices=1)
    with pytest.raises(ReportError, match="cannot be written to"):
        strategy.record(tmp_path / "file" / "report")
    assert strategy.observer is NULL_OBSERVER


VICTIM = """
import sys
sys.path.insert(0, {root!r})
import convoy
from tests.report.conftest import data, network
strategy = convoy.Strategy(devices=1)
with strategy.scope():
    model = network()
strategy.record(sys.argv[1])
x, y = data()
model.fit(x, y, batch_size=8, epochs=10_000_000, verbose=0)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_a_report(tmp_path):
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", VICTIM.format(root=root), str(tmp_path)]
    process = subprocess.Popen(command)
    try:
        # What can be read while it is being written can be read when it is killed.
        while not (tmp_path / "run.json").is_file() or not read(tmp_path).parts["calls"]:
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    report = read(tmp_path)
    assert report.run["state"] == "running"
    assert report.run["totals"]["devices"]["train"]["steps"] > 0
    assert json.loads((tmp_path / "programs" / "0000.json").read_text())["name"] == "train"
