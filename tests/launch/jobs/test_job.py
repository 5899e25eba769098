"""The name and the command of a job."""

import pytest
from convoy.launch.jobs.job import MAX_NAME, Accelerators, Job, as_comment
from convoy.launch.topology import Topology


def job(*program, **options):
    return Job(program, Topology(instances=4, replicas=8, **options), hosts=4)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("My_Script.py", "my-script"),
        ("folder/train.py", "train"),
        ("2024.py", "job-2024"),
        ("_.py", "job"),
        (f"{'long' * 20}.py", ("long" * 20)[:MAX_NAME]),
    ],
)
def test_the_name_is_one_that_clusters_accept(script, name):
    assert job(script, "--epochs", "3").name == name


def test_the_script_is_the_program_that_an_interpreter_runs():
    assert job("python", "-u", "train.py", "--epochs").script == "train.py"
    assert job("./program", "--epochs").script == "./program"


def test_the_command_has_the_options_that_differ_from_the_defaults():
    assert job("train.py", "--epochs", "3").command("slurm") == [
        *("convoy", "launch", "--cluster", "slurm", "--num-instances", "4", "--num-replicas", "8"),
        *("train.py", "--epochs", "3"),
    ]
    given = job("train.py", devices_per_replica=2, port=29500, heartbeat_timeout=90.0)
    assert given.command("slurm")[8:] == [
        *("--devices-per-replica", "2", "--port", "29500", "--heartbeat-timeout", "90"),
        "train.py",
    ]


def test_a_script_without_convoy_gets_its_replicas_from_the_launcher():
    plain = Job(("train.py",), Topology(instances=2, replicas=4), hosts=2, plain_script=True)
    assert plain.command("none")[4:] == ["--num-instances", "2", "--replicas", "4", "train.py"]


def test_devices_are_counted_over_all_hosts():
    assert Accelerators("tpu", "v5e", (4, 4), hosts=4, per_host=4).devices == 16


def test_every_line_of_a_comment_is_marked():
    assert as_comment("first\n\nsecond") == "# first\n#\n# second"
