"""Every script runs to its end: `python3 -m pytest test`.

The digits are downloaded, or read from the file that the variable `MNIST_FILE` names.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDER = HERE.parent


@pytest.mark.parametrize(
    "command",
    [
        "demo.py",
        "completed_demos/completed_demo_ipu.py",
        "completed_demos/completed_demo_faster.py",
        "completed_demos/completed_demo_replicated.py",
        "completed_demos/completed_demo_pipelining.py",
        "completed_example/main.py",
        "completed_example/main.py --use-ipu",
        "completed_example/main.py --use-ipu --pipelining",
        "completed_example/main.py --use-ipu --pipelining --gradient-accumulation-count 4",
    ],
)
def test_runs_to_its_end(command: str) -> None:
    file = os.environ.get("MNIST_FILE")
    launch = [HERE / "run.py", file] if file else []
    done = subprocess.run(
        [sys.executable, *launch, *command.split()], cwd=FOLDER, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Training" in done.stdout
    assert "Evaluation" in done.stdout
    assert done.stdout.splitlines()[-1] == "Program ran successfully"
