"""Commands for TPU virtual machines: checked, and run with a stand-in for `gcloud`."""

import os
import re
import shlex
import subprocess

import pytest
from convoy.cli import launch as launch_command
from tests import parts

from .test_slurm import write

# Flags of each command of `gcloud compute tpus tpu-vm`, by its help.
FLAGS = {
    "create": {"--zone", "--type", "--topology", "--version", "--spot"},
    "delete": {"--zone", "--quiet"},
    "describe": {"--zone", "--format"},
    "scp": {"--zone", "--worker", "--recurse"},
    "ssh": {"--zone", "--worker", "--command"},
}
# Answers with the state in a file, and with the statuses of `docker run` in another, one by one.
GCLOUD = """#!/bin/bash
printf '%q ' "$@" >> calls.txt
echo >> calls.txt
case "$4" in
  describe) cat state 2> /dev/null ;;
  create) echo READY > state ;;
  delete) rm state ;;
esac
if [[ "$*" == *"docker run"* ]]; then
  read -r status after < statuses
  sed -i 1d statuses
  if [ -n "$after" ]; then echo "$after" > state; fi
  exit "$status"
fi
"""


def run(folder, text, *statuses, **variables):
    """Run the commands; return the exit status and the calls of `gcloud` after `tpu-vm`."""
    (folder / "gcloud").write_text(GCLOUD)
    (folder / "gcloud").chmod(0o755)
    (folder / "job.sh").write_text(text)
    (folder / "statuses").write_text("\n".join(statuses) + "\n")
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "job.sh"],
        cwd=folder,
        env=path | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    calls = folder / "calls.txt"
    lines = calls.read_text().splitlines() if calls.exists() else []
    found = [shlex.split(line) for line in lines]
    assert all(call[:3] == ["compute", "tpus", "tpu-vm"] for call in found)
    return ended, [call[3:] for call in found if call[3] != "describe"]


def job(capsys, *words):
    return write(capsys, "--target", "tpu:v5e:4x4", *words, target="tpu-vm")


def test_machines_are_created_used_and_deleted(capsys, tmp_path):
    text = job(capsys, "sub/train.py", "--name", "a b", "$x")
    variables = {"ZONE": "z", "IMAGE": "host/i:1", "OPTIONS": "--spot"}
    ended, calls = run(tmp_path, text, "0", **variables)
    assert ended.returncode == 0, ended.stderr
    verbs = ["create", "ssh", "scp", "ssh", "ssh", "scp", "delete"]
    assert [call[0] for call in calls] == verbs
    shape = ["--type=v5litepod", "--topology=4x4", "--version=v2-alpha-tpuv5-lite", "--spot"]
    assert calls[0] == ["create", "train", *shape, "--zone=z"]
    assert calls[2] == ["scp", "sub/train.py", "train:run/sub/", "--worker=all", "--zone=z"]
    (command,) = [word for word in calls[4] if word.startswith("--command=")]
    words = shlex.split(command.removeprefix("--command="))
    command = "launch --cluster tpu-vm --num-instances 4 --num-replicas 16 sub/train.py --name"
    assert words[words.index("host/i:1") + 1 :] == [*command.split(), "a b", "$x"]
    for call in calls:
        flags = {re.match(r"--[a-z]+", word)[0] for word in call if word.startswith("--")}
        assert flags <= FLAGS[call[0]]


def test_preempted_machines_are_created_again(capsys, tmp_path):
    variables = {"ZONE": "z", "IMAGE": "i", "NAME": "mine"}
    ended, calls = run(tmp_path, job(capsys, "x.py"), "75", "255 PREEMPTED", "0", **variables)
    assert ended.returncode == 0, ended.stderr
    verbs = [call[0] for call in calls]
    assert verbs.count("create") == 2
    # Those that were preempted, and all at the end.
    assert verbs.count("delete") == 2
    assert verbs[-1] == "delete"


def test_failures_are_restarted_as_often_as_allowed(capsys, tmp_path):
    text = job(capsys, "--max-restarts", 1, "x.py")
    ended, calls = run(tmp_path, text, "1", "2", ZONE="z", IMAGE="i")
    assert ended.returncode == 2
    assert "gcloud compute tpus tpu-vm delete x --zone=z" in ended.stderr
    assert [call[0] for call in calls].count("create") == 1


@pytest.mark.parametrize("name", ["ZONE", "IMAGE"])
def test_what_is_not_filled_in_is_one_line(capsys, tmp_path, name):
    given = {"ZONE": "z", "IMAGE": "i"}
    del given[name]
    ended, calls = run(tmp_path, job(capsys, "x.py"), "0", **given)
    assert ended.returncode != 0
    assert f"{name}: set the" in ended.stderr
    assert not calls


@parts.needs("shellcheck")
def test_shellcheck_finds_nothing(capsys, tmp_path):
    file = tmp_path / "job.sh"
    file.write_text(job(capsys, "--max-restarts", 2, "my script.py", "--flag", "$HOME 'x' \"y\""))
    words = [parts.find_program("shellcheck"), file]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-instances", "2", "x.py"], "--write tpu-vm needs TPUs. Pass for example --target"),
        (["--target", "gpu:h100:8", "x.py"], "--write tpu-vm needs TPUs"),
        (["--target", "tpu:v5e:4x4", "--num-instances", "2", "x.py"], "run one process each"),
        (["--target", "tpu:v5e:4x4", "/tmp/x.py"], "copies a Python script by its relative path"),
        (["--target", "tpu:v5e:4x4", "--numa-aware", "x.py"], "--numa-aware has no meaning for"),
        (["--target", "tpu:v5e:4", "x.py"], "has 1 axes, but a topology of v5e has 2"),
    ],
)
def test_what_cannot_be_written_is_one_line(capsys, words, message):
    assert launch_command.main(["--write", "tpu-vm", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_eight_chips_are_one_machine(capsys):
    text = write(capsys, "--target", "tpu:v6e:2x4", "x.py", target="tpu-vm")
    assert "--num-instances 1 --num-replicas 8 x.py" in text
