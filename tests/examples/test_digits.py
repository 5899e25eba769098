import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from convoy.checkpoint import EXIT_STATUS
from tests.launch.running import wait_until

SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-u", SCRIPT, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    )


def run(*words):
    process = start(*words)
    printed, errors = process.communicate()
    return process.returncode, printed, errors


def test_trains_and_writes_its_run(tmp_path):
    status, printed, errors = run("--epochs", 8, "--output", tmp_path / "run")
    assert (status, errors) == (0, "")
    accuracy = float(printed.split("held-out accuracy")[1].split("%")[0])
    assert accuracy >= 97
    # Nothing that a second run would go on with.
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        "model.keras",
        "metrics.csv",
        "curves.png",
    }
    assert "images/s" in printed


def test_an_interrupted_run_resumes_when_it_is_started_again(tmp_path):
    words = "--epochs", 2, "--devices", 1, "--output", tmp_path
    process = start(*words)
    for line in process.stdout:
        if line.startswith("Epoch 1/"):
            break
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate()
    assert process.returncode == EXIT_STATUS
    assert re.fullmatch(r"\nSIGINT: waiting for the running device call .*\n", errors)
    left, last = printed.splitlines()[-2:]
    where = left.split("checkpoint to resume from: ")[1]
    assert left.startswith("Stopped by SIGINT")
    assert last == "Run it again to resume."
    assert [file.name for file in tmp_path.iterdir()] == ["unfinished"]

    status, printed, errors = run(*words)
    assert (status, errors) == (0, "")
    assert f"Resumed from {where} after 0 of 2 epochs" in printed
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "1", "2"]
    assert not (tmp_path / "unfinished").exists()


@pytest.mark.parametrize("library", ["jaxlib", pytest.param("h5py", marks=pytest.mark.slow)])
def test_an_interrupt_before_training_ends_it_without_a_traceback(tmp_path, library):
    process = start("--output", tmp_path)
    loaded = Path(f"/proc/{process.pid}/maps")
    wait_until(lambda: f"/{library}/" in loaded.read_text())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    # On a fast machine training has begun.
    assert process.returncode in (-signal.SIGINT, EXIT_STATUS)
    assert errors == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--epohcs", 3], "--epohcs is not a flag. Did you mean --epochs?"),
        (["--epochs", 0], "--epochs 0 --batch-size 32: pass 1 or more for both"),
    ],
)
def test_an_invalid_flag_is_reported_in_one_line(tmp_path, words, expected):
    status, _, errors = run(*words, "--output", tmp_path)
    assert (status, errors) == (2, f"train.py: error: {expected}\n")
