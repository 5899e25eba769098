import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"


def test_trains_and_writes_its_run(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--epochs", "8", "--output", tmp_path / "run"],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.split("held-out accuracy")[1].split("%")[0])
    assert accuracy >= 97
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        "model.keras",
        "metrics.csv",
        "curves.png",
    }
    assert "images/s" in done.stdout
    assert done.stderr == ""
