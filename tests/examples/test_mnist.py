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
    # Batches of 64: with the incomplete one; on one device; on two; in updates of 8.
    steps = [int(total) for total in re.findall(r"(\d+)/\1", _plain(done.stdout))]
    assert {10, 9, 8} <= set(steps)
    for title in ("CPU", "IPU", "steps_per_execution", "replication", "pipelining"):
        assert f"{title}\n" in done.stdout


def _plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "title", "training", "testing"),
    [
        # Batches of 64: 1700 samples are 26 and a part, on all replicas; 8 of them are an update.
        ("demo.py", "running on CPU", 27, 27),
        ("completed_demos/completed_demo_ipu.py", "running on IPU", 26, 26),
        (
            "completed_demos/completed_demo_faster.py",
            "running on IPU with steps_per_execution",
            26,
            26,
        ),
        (
            "completed_demos/completed_demo_replicated.py",
            "running on IPU with replication",
            26,
            26,
        ),
        ("completed_demos/completed_demo_pipelining.py", "running on IPU with pipelining", 24, 24),
    ],
)
def test_every_demo_prints_what_the_tutorial_says(more_digits, command, title, training, testing):
    printed = _plain(run(more_digits, command).stdout)
    assert printed.splitlines()[0] == f"Keras MNIST example, {title}"
    assert "Total params: 34,826" in printed
    trained, evaluated = printed.split("\nTraining\n")[1].split("\nEvaluation\n")
    bars, end = evaluated.rstrip().rsplit("\n", 1)
    assert end == "Program ran successfully"
    check_epochs(trained, training)
    check_bars(bars, testing)


def check_epochs(trained, steps):
    before, *epochs = re.split(r"^Epoch \d/3$", trained, flags=re.MULTILINE)
    assert (before.strip(), len(epochs)) == ("", 3)
    for epoch in epochs:
        check_bars(epoch, steps)


def check_bars(text, steps):
    """Check the last state of a progress bar."""
    bar = re.split(r"[\n\r\x08]+", text.strip())[-1]
    assert re.fullmatch(
        rf"{steps}/{steps} \S+ \S+ \S+/step - accuracy: [01]\.\d{{4}} - loss: \d+\.\d{{4}}", bar
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "steps", "left"),
    [
        # Batches of 80, alone; 20 halves on each of two devices; 8 or 4 in an update.
        ("", 21, 20),
        ("--use-ipu", 40, 100),
        ("--use-ipu --pipelining", 16, 420),
        ("--use-ipu --pipelining --gradient-accumulation-count 4", 20, 100),
    ],
)
def test_the_program_prints_what_it_trained_and_found(more_digits, flags, steps, left):
    printed = _plain(run(more_digits, "completed_example/main.py", *flags.split()).stdout)
    warning = f"WARNING: {left} of 1700 samples do not fill an execution and are left out."
    said, trained = printed.split("Training\n")
    assert said.splitlines() == [warning, warning]
    trained, evaluated = trained.split("Evaluation\n")
    check_epochs(trained, steps)
    results, end = evaluated.splitlines()
    assert re.fullmatch(r"loss: \d+\.\d{4} - accuracy: [01]\.\d{4}", results)
    assert end == "Program ran successfully"


@pytest.mark.parametrize(
    ("flags", "count", "notes"),
    [
        ([], 8, []),
        (["--pipelining"], 8, ["Note: --pipelining has no effect without --use-ipu."]),
        (
            ["--use-ipu", "--gradient-accumulation-count", "4"],
            4,
            ["Note: gradients are accumulated with --use-ipu and --pipelining only."],
        ),
        (
            ["--use-ipu", "--pipelining", "--gradient-accumulation-steps-per-replica", "4"],
            4,
            [],
        ),
    ],
)
def test_the_program_says_which_flags_have_no_effect(monkeypatch, capsys, flags, count, notes):
    monkeypatch.setattr(sys, "argv", ["main.py", *flags])
    utils = runpy.run_path(str(FOLDER / "completed_example" / "utils.py"))
    arguments = utils["parse_arguments"]()
    assert (arguments.batch_size, arguments.gradient_accumulation_count) == (80, count)
    assert capsys.readouterr().out.splitlines() == notes


def test_the_program_refuses_a_batch_that_does_not_divide(digits):
    with pytest.raises(AssertionError, match="--batch-size 81 does not divide over two replicas"):
        run(digits, "completed_example/main.py", "--use-ipu", "--batch-size", "81")
