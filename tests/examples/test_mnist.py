import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.digits import write_digits

FOLDER = Path(__file__).parents[2] / "examples" / "mnist"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "mnist.npz", train=600, test=100)


@pytest.fixture(scope="module")
def more_digits(tmp_path_factory):
    """Enough for an execution of 20 steps of 80 samples."""
    return write_digits(tmp_path_factory.mktemp("digits") / "mnist.npz", train=1700, test=1700)


def run(digits, *command):
    environment = {k: v for k, v in os.environ.items() if k != "CONVOY_DEVICES"}
    done = subprocess.run(
        [sys.executable, FOLDER / "test" / "run.py", digits, *command],
        cwd=FOLDER,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_notebook_is_the_page():
    made = runpy.run_path(FOLDER / "make_notebook.py")
    page, notebook = (FOLDER / "README.md").read_text(), FOLDER / "walkthrough.ipynb"
    assert notebook.read_text() == made["notebook"](page)


def cells():
    notebook = json.loads((FOLDER / "walkthrough.ipynb").read_text())
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


@pytest.mark.slow
def test_the_notebook_runs_in_one_process_with_one_device_and_later_two(digits, tmp_path):
    script = tmp_path / "walkthrough.py"
    script.write_text("\n\n".join(cells()))
    done = run(digits, script)
    assert done.stderr == "Resetting existing IPU configuration before applying new configuration\n"
    # Batches of 64: with the incomplete one; on one device; on each of two; in updates of 8.
    steps = [int(total) for total in re.findall(r"(\d+)/\1", _plain(done.stdout))]
    assert {10, 9, 4, 8} <= set(steps)
    for title in ("CPU", "IPU", "steps_per_execution", "replication", "pipelining"):
        assert f"{title}\n" in done.stdout


def _plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.slow
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
        "completed_example/main.py --use-ipu --pipelining --gradient-accumulation-count 4",
    ],
)
def test_every_script_runs_to_its_end(more_digits, command):
    done = run(more_digits, *command.split())
    assert "Training" in done.stdout
    assert "Evaluation" in done.stdout
    assert done.stdout.splitlines()[-1] == "Program ran successfully"


def test_the_program_refuses_a_batch_that_does_not_divide(digits):
    with pytest.raises(AssertionError, match="--batch-size 81 does not divide over two replicas"):
        run(digits, "completed_example/main.py", "--use-ipu", "--batch-size", "81")
