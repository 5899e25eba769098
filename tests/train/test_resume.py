"""`convoy train --resume`: a run that was stopped goes on, and nobody can tell."""

import contextlib
import csv
import os
import signal
import subprocess
import sys

import keras
import pytest
from convoy.checkpoint import store
from convoy.checkpoint.folder import Folder
from convoy.cli.train import parse
from convoy.train import resume
from convoy.train.flags import Options
from convoy.train.graphcore_flags import GraphcoreOptions
from convoy.train.metrics import MetricsRow
from convoy.train.recipe import as_recipe
from convoy.train.run_folder import RunFolder
from convoy.train.run_settings import make_run_settings

pytestmark = pytest.mark.integration

# Crops and flips at random, 20 calls with a state each, and a checkpoint every five epochs.
RUN = (
    *("--model", "toy_model_bn", "--precision", "32.32", "--seed", "1", "--micro-batch-size", "5"),
    *("--num-epochs", "20", "--ckpts-per-epoch", "1/10", "--state-every", "1", "--resume"),
    *("--optimizer-params", "{momentum: 0.9}", "--output-dir", "run", "--validation", "False"),
)
TIMES = ("throughput", "compilation")


class Process:
    """`convoy train` as a process of its own, in a folder of its own."""

    def __init__(self, folder, data, programs):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.command = [sys.executable, "-m", "convoy", "train", *RUN, "--dataset-path", data]
        self.environment = os.environ | {"CONVOY_COMPILATION_CACHE": str(programs)}

    def run(self, kill_after=None):
        """Run to the end, or until so many log lines; returns exit status and all lines."""
        lines = []
        with subprocess.Popen(
            self.command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout:
                lines.append(line)
                if sum(said.startswith("batch ") for said in lines) == kill_after:
                    process.send_signal(signal.SIGKILL)
                    break
        return process.returncode, lines

    def rows(self):
        with (self.folder / "run" / "metrics.csv").open() as file:
            return [
                {k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)
            ]

    def state(self):
        folder = Folder(self.folder / "run" / "state")
        return store.state_hash(store.read_manifest(folder.at(folder.positions()[-1])))


def test_a_run_that_is_killed_goes_on_to_the_same_end(small_cifar, tmp_path):
    whole, killed = (Process(tmp_path / name, small_cifar, tmp_path / "p") for name in "ab")
    assert whole.run()[0] == 0
    assert killed.run(kill_after=7)[0] == -signal.SIGKILL
    status, lines = killed.run()
    assert status == 0
    assert 0 < sum(line.startswith("batch ") for line in lines) < 20
    assert killed.state() == whole.state()
    assert killed.rows() == whole.rows()
    assert len(whole.rows()) == 20
    for folder in (whole.folder, killed.folder):
        saved = sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())
        assert saved == ["epoch_10.0.weights.h5", "epoch_20.0.weights.h5"]


@pytest.mark.slow
def test_a_run_that_is_told_to_leave_goes_on_too(application, tmp_path, monkeypatch):
    def words(folder, *more):
        # As in a process of its own, names of layers begin anew: they are part of the state.
        keras.backend.clear_session(free_memory=False)
        return ("--precision", "32.32", "--micro-batch-size", 5, "--output-dir", folder, *more)

    def interrupt(self, record):
        if record.update == 15:
            os.kill(os.getpid(), signal.SIGTERM)

    epochs = ("--num-epochs", 3, "--logs-per-epoch", 2)
    first = application(*words("a", *epochs, "--seed", 4))
    assert first.status == 0, first.err
    with monkeypatch.context() as patch:
        patch.setattr("convoy.train.progress_callback.ProgressCallback._show", interrupt)
        left = application(*words("b", *epochs, "--seed", 4))
    assert left.status == 75
    assert "To resume: convoy train --resume --output-dir b" in left.err
    # Of the other flags nothing is given again.
    keras.backend.clear_session(free_memory=False)
    second = application("--output-dir", "b", "--resume")
    assert second.status == 0, second.err
    assert "resumed             after 15 of 30 weight updates" in second.out
    processes = [Process(tmp_path / name, tmp_path, tmp_path) for name in ("a", "b")]
    for process in processes:
        process.folder.joinpath("run").symlink_to(process.folder)
    assert processes[1].rows() == processes[0].rows()
    assert processes[1].state() == processes[0].state()
    again = application(*words("b", *epochs, "--resume"))
    assert "resumed             training is complete" in again.out
    longer = application(*words("b", "--num-epochs", 4, "--logs-per-epoch", 2, "--resume"))
    assert longer.status == 0, longer.err
    assert "The run resumes with other flags: --epochs 4 (it was 3)." in longer.err
    assert len(processes[1].rows()) == 8 + 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume"], "--resume continues the run in a folder. Pass --output-dir too."),
        (["--state-every", "sometimes"], "--state-every sometimes: pass epoch, a number"),
        (["--state-every", "0"], "--state-every 0: pass epoch, a number"),
        (
            ["--resume", "--output-dir", "x", "--model", "toy_model", "--state-every", "never"],
            "never saves none",
        ),
    ],
)
def test_what_cannot_be_resumed_is_refused(application, tmp_path, words, message):
    done = application(*words)
    assert done.status == 2
    assert message in done.err
    assert list(tmp_path.iterdir()) == []


def test_flags_that_are_not_given_are_those_of_the_run(tmp_path):
    words = ["--model", "toy_model", "--seed", "7", "--num-epochs", "3", "--pipeline-splits", "a"]
    folder = RunFolder(tmp_path / "my run")
    folder.open(as_recipe(parse([*words, "--output-dir", str(folder.path)])))
    with contextlib.closing(folder):
        resumed = parse(["--resume", "--output-dir", str(folder.path), "--num-epochs", "4"])
    assert (resumed.model, resumed.seed, resumed.num_epochs) == ("toy_model", 7, 4)
    assert resumed.pipeline_splits == ["a"]
    assert resumed.resume
    anew = parse(["--output-dir", str(folder.path)])
    assert anew == GraphcoreOptions(output_dir=str(folder.path))


def test_a_recipe_of_the_run_that_cannot_be_read_is_refused(application, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yml").write_text("run: {model-nam: 3")
    done = application("--resume", "--output-dir", "run")
    assert done.status == 2
    assert "run/recipe.yml is not YAML" in done.err


def test_other_flags_are_named_by_their_short_names(tmp_path):
    folder = RunFolder(tmp_path)
    folder.open(as_recipe(GraphcoreOptions(num_epochs=150)))
    with contextlib.closing(folder):
        changed = GraphcoreOptions(num_epochs=40, learning_rate=0.1, resume=True)
        assert resume.differences(changed, folder) == [
            "The run resumes with other flags: --learning-rate 0.1 (it was None), --epochs 40 (it "
            "was 150)."
        ]


def test_a_run_that_begins_with_resume_is_said_to_be_new(tmp_path):
    settings = make_run_settings(Options(resume=True, output_dir=str(tmp_path)))
    position = resume.resume_position(settings, RunFolder(tmp_path))
    assert position == f"new run             {tmp_path} has no run to resume"
    settings = make_run_settings(Options())
    assert resume.resume_position(settings, RunFolder(tmp_path)) == ""


def test_an_earlier_run_is_not_overwritten(application, tmp_path):
    (tmp_path / "run" / "state" / "epoch-0001-step-00000000").mkdir(parents=True)
    done = application("--output-dir", "run")
    assert done.status == 2
    assert "run has a run that can be resumed. Pass --resume to continue it" in done.err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["state"]


@pytest.mark.slow
def test_alternating_flips_adapted_layers_and_lookahead_go_on_too(
    application, tmp_path, monkeypatch
):
    def run(folder):
        keras.backend.clear_session(free_memory=False)
        recipe = ("--config", "cifar10_fast", "--micro-batch-size", 5, "--seed", 4)
        words = ("--num-epochs", 3, "--output-dir", folder, "--resume", "--validation", False)
        return application(*recipe, *words, "--lookahead", 3).status

    def state(folder):
        states = Folder(tmp_path / folder / "state")
        return store.state_hash(store.read_manifest(states.at(states.positions()[-1])))

    def interrupt(self, record):
        if record.update == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    assert run("a") == 0
    with monkeypatch.context() as patch:
        patch.setattr("convoy.train.progress_callback.ProgressCallback._show", interrupt)
        assert run("b") == 75
    assert state("b") != state("a")
    assert run("b") == 0
    assert state("b") == state("a")


# The folder of a run that goes on ---------------------------------------------------------------


def record(update, phase="training"):
    return MetricsRow(phase, update, update / 10, 1 / update, 0.1, 100.0, 0.01)


def make_run(path, count):
    folder = RunFolder(path)
    folder.open({})
    for update in range(1, count + 1):
        folder.add(record(update))
    folder.add(record(count, "validation"))
    folder.close()


def rows(path):
    with (path / "metrics.csv").open() as file:
        return [(row["phase"], int(row["update"])) for row in csv.DictReader(file)]


def test_rows_after_the_state_are_made_again(tmp_path):
    make_run(tmp_path, 4)
    folder = RunFolder(tmp_path)
    folder.open({}, resumes=True)
    assert len(rows(tmp_path)) == 5  # as it was, until it is known where the run goes on
    folder.restore(2, ["epoch_1.0.weights.h5"])
    assert folder.rows == [record(1), record(2)]
    folder.add(record(3))
    assert rows(tmp_path) == [("training", update) for update in (1, 2, 3)]
    assert folder.written == []  # what has been deleted since is not looked for
    assert folder.failures == []
    folder.close()


def test_a_run_that_begins_anew_drops_all_rows(tmp_path):
    make_run(tmp_path, 4)
    folder = RunFolder(tmp_path)
    folder.open({}, resumes=True)
    folder.add(record(1))
    folder.close()
    assert rows(tmp_path) == [("training", 1)]


def test_a_row_cut_short_is_dropped_and_missing_ones_are_said(tmp_path, capsys):
    make_run(tmp_path, 4)
    whole = (tmp_path / "metrics.csv").read_text()
    (tmp_path / "metrics.csv").write_text("".join(whole.splitlines(keepends=True)[:3])[:-4])
    folder = RunFolder(tmp_path)
    folder.open({}, resumes=True)
    folder.restore(3, [])
    folder.close()
    assert rows(tmp_path) == [("training", 1)]
    assert "metrics.csv has lost 2 rows of 3" in capsys.readouterr().err


def test_events_of_a_run_that_goes_on_replace_later_ones(tmp_path):
    make_run(tmp_path, 4)
    folder = RunFolder(tmp_path)
    folder.open({}, resumes=True)
    folder.restore(2, [])
    folder.close()
    _, newest = sorted(tmp_path.glob("events.out.tfevents.*"))
    # A session that starts (field 7) at step 3: readers forget what they have from there on.
    assert newest.read_bytes()[:-4].endswith(b"\x10\x03\x3a\x02\x08\x01")
