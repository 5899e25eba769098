"""Batch files for Slurm: checked, and run by a stand-in for Slurm with real processes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from convoy.cli import launch as launch_command
from tests import parts
from tests.launch.running import SCRIPT, assert_same_run, in_one_process, outcomes, wait_until

from .slurm_cluster import Slurm, directives, fill_in

pytestmark = pytest.mark.integration

# Options with the form of their values, by the manuals of sbatch and srun.
NUMBER = r"[1-9]\d*"
SBATCH = {
    "account": r"\w+",
    "cpus-per-task": NUMBER,
    "gpus-per-task": rf"(\w+:)?{NUMBER}",
    "job-name": r"\S+",
    "nodelist": r"[\w.\[\],-]+",
    "nodes": rf"{NUMBER}(-{NUMBER})?",
    "ntasks-per-node": NUMBER,
    "open-mode": "append|truncate",
    "output": r"(\w|-|\.|%[jx])+",
    "partition": r"[\w,]+",
    "requeue": "",
    "signal": r"([RB]+:)?[A-Z]+@\d{1,5}",
    "time": r"\d+|(\d+-)?\d+(:\d\d){1,2}",
}
SRUN = {
    "cpu-bind": "((quiet|verbose),)?(cores|ldoms|none|rank|sockets|threads)",
    "cpus-per-task": r"\$SLURM_CPUS_PER_TASK",
    "kill-on-bad-exit": "[01]",
    "label": "",
    "wait": r"\d+",
}
FILLED = {"account": "physics", "partition": "gpu", "cores": "1", "time": "12:00:00"}


def write(capsys, *words, target="slurm"):
    assert launch_command.main(["--write", target, *map(str, words)]) == 0
    return capsys.readouterr().out


def test_a_batch_file_has_the_processes_devices_and_signals_of_its_launch(capsys):
    words = ["--target", "gpu:h100:4x8", "--devices-per-replica", 2, "--num-instances", 8]
    text = write(capsys, *words, "--max-restarts", 3, "--numa-aware", "train.py", "--name", "a b")
    assert directives(text) == {
        "job-name": "train",
        "account": "<account>",
        "partition": "<partition>",
        "nodes": "4",
        "ntasks-per-node": "2",
        "cpus-per-task": "<cores>",
        "time": "<time>",
        "signal": "TERM@300",
        "output": "%x-%j.out",
        "gpus-per-task": "4",
        "requeue": "",
        "open-mode": "append",
    }
    assert (
        "convoy launch --cluster slurm --num-instances 8 --num-replicas 16 "
        "--devices-per-replica 2 train.py --name 'a b'\n"
    ) in text
    assert "--cpu-bind=ldoms" in text
    assert "\nrestarts=3\n" in text
    for place in FILLED:
        assert f"#   <{place}>" in text or f", <{place}>" in text


@pytest.mark.parametrize(
    "words",
    [
        ["--num-instances", 4],
        ["--num-instances", 2, "--numa-aware"],
        ["--host", "a,b-1.c"],
        ["--target", "gpu:h100:4x8", "--devices-per-replica", 2],
    ],
)
def test_a_batch_file_has_only_options_that_slurm_has(capsys, words):
    text = fill_in(write(capsys, *words, "train.py"), **FILLED)
    assert text.startswith("#!/bin/bash\n")
    # Slurm reads no options after the first command.
    assert "#SBATCH" not in text.partition("\nenvironment=")[2]
    for name, value in directives(text).items():
        assert re.fullmatch(SBATCH[name], value), f"--{name}={value}"
    (step,) = re.findall(r"^  srun (.*) \\$", text, re.M)
    for name, value in re.findall(r"--([a-z-]+)(?:=([^ \"}]+))?", step):
        assert re.fullmatch(SRUN[name], value), f"--{name}={value}"


def test_named_hosts_and_a_plain_script_are_kept(capsys):
    text = write(capsys, "--host", "a,b", "--replicas", 4, "--port", 4711, "script.py")
    assert directives(text)["nodelist"] == "a,b"
    assert directives(text)["nodes"] == "2"
    assert "--num-instances 2 --replicas 4 --port 4711 script.py" in text


@parts.needs("shellcheck")
@pytest.mark.parametrize("words", [["--num-instances", 2], ["--target", "gpu:a100:8"]])
def test_shellcheck_finds_nothing(capsys, tmp_path, words):
    file = tmp_path / "job.sbatch"
    file.write_text(write(capsys, *words, "my script.py", "--flag", "$HOME 'x'"))
    # The dollar of an argument is not expanded, as it should be.
    words = [parts.find_program("shellcheck"), "--exclude=SC2016", file]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


# A program in the place of `convoy`: it notes its runs, and exits with the status for each.
COUNTS = """#!/bin/bash
echo run >> "runs$SLURM_PROCID"
if [ "$SLURM_PROCID" -eq 1 ]; then
  exit "$(sed -n "$(wc -l < runs1)p" statuses)"
fi
"""
# Exits with the status of a preempted run when it receives SIGTERM.
WAITS = """#!/bin/bash
trap 'exit 75' TERM
touch "ready$SLURM_PROCID"
while true; do sleep 0.05; done
"""


def job_with(capsys, folder, program, *words):
    """Return a filled in job that runs another program in the place of `convoy`."""
    file = folder / "bin" / "convoy"
    file.parent.mkdir(exist_ok=True)
    file.write_text(program)
    file.chmod(0o755)
    text = write(capsys, "--num-instances", 2, *words, "train.py")
    assert text.count(f"environment={shlex.quote(sys.prefix)}\n") == 1
    return fill_in(text.replace(sys.prefix, str(folder)), **FILLED)


@pytest.mark.parametrize(("statuses", "status"), [((3, 4, 0), 0), ((3, 4, 5), 5), ((3, 75), 75)])
def test_failures_are_restarted_as_often_as_allowed(capsys, tmp_path, statuses, status):
    slurm = Slurm(tmp_path)
    (tmp_path / "statuses").write_text("".join(f"{each}\n" for each in statuses))
    ended, output = slurm.run(job_with(capsys, tmp_path, COUNTS, "--max-restarts", 2))
    assert ended == status, output
    runs = [(tmp_path / f"runs{process}").read_text().split() for process in range(2)]
    assert runs == 2 * [["run"] * len(statuses)]
    assert "exit status 3: restarting all processes; 1 restarts are left." in output
    assert slurm.requeued == ([f"requeue {os.getpid()}"] if status == 75 else [])


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_preempted_job_is_queued_again_and_a_cancelled_one_is_not(capsys, tmp_path, is_cancelled):
    slurm = Slurm(tmp_path)
    with slurm.start(job_with(capsys, tmp_path, WAITS)) as batch:
        wait_until(lambda: all((tmp_path / f"ready{n}").exists() for n in range(2)))
        if is_cancelled:
            batch.send_signal(signal.SIGTERM)
        for pid in (tmp_path / "pids").read_text().split():
            os.kill(int(pid), signal.SIGTERM)
        batch.communicate()
    assert batch.returncode == 75
    assert slurm.requeued == ([] if is_cancelled else [f"requeue {os.getpid()}"])


@pytest.mark.slow
def test_two_processes_of_slurm_train_as_one_does_after_preemption_and_failure(capsys, tmp_path):
    slurm, job = Slurm(tmp_path), ["--num-instances", 2, "--heartbeat-timeout", 4]
    words = [SCRIPT, tmp_path, "--checkpoints", tmp_path / "checkpoints"]
    text = write(capsys, *job, *words, "--die", "1:3:SIGTERM")
    status, output = slurm.run(fill_in(text, **FILLED))
    assert status == 75, output
    assert len(slurm.requeued) == 1
    assert list((tmp_path / "checkpoints").iterdir())
    # Slurm starts the same file again.
    (tmp_path / "died").unlink()
    text = write(capsys, *job, "--max-restarts", 1, *words, "--die", "1:2:SIGKILL")
    status, output = slurm.run(fill_in(text, **FILLED))
    assert status == 0, output
    assert "restarting all processes; 0 restarts are left" in output
    first, second = outcomes(tmp_path, 2)
    assert first == second
    assert first["processes"] == 2
    assert_same_run(first, in_one_process(2))


@pytest.mark.slow
def test_stages_in_two_processes_of_slurm_train_as_in_one(capsys, tmp_path):
    words = ["--num-instances", 2, "--num-replicas", 1, "--devices-per-replica", 2]
    text = write(capsys, *words, SCRIPT, tmp_path, "--staged", "plain")
    status, output = Slurm(tmp_path).run(fill_in(text, **FILLED))
    assert status == 0, output
    first, second = outcomes(tmp_path, 2)
    assert first == second
    # Not bit by bit: Slurm does not bind these processes to one core each.
    assert_same_run(first, in_one_process(2, staged="plain"))
    held = [json.loads((tmp_path / f"held-{process}").read_text()) for process in range(2)]
    assert all(one != other for one, other in zip(*held, strict=True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "tpu:v5e:4x4", "x.py"], "--write slurm is for CPUs and GPUs. Pass --write t"),
        (["--target", "gpu:h100:2x8", "--num-replicas", 8, "x.py"], "has 16 devices, but 8 replic"),
        (["--target", "gpu:h100:2x8", "--num-instances", 3, "x.py"], "is not a multiple of 2 host"),
        (["--target", "gpu:h10:8", "x.py"], "is not one of a100, h100, h200, l4. Did you mean h1"),
        (["--only-output-from-instance", 0, "x.py"], "has no meaning with --write"),
        ([], "There is no program to run."),
    ],
)
def test_what_cannot_be_written_is_one_line(capsys, words, message):
    assert launch_command.main(["--write", "slurm", *map(str, words)]) == 2
    output, error = capsys.readouterr()
    assert not output
    assert message in error
    assert error.count("\n") == 1


def test_a_target_is_for_a_written_job(capsys):
    assert launch_command.main(["--target", "gpu:h100:8", "x.py"]) == 2
    assert "--target was passed without --write. Pass both," in capsys.readouterr().err
