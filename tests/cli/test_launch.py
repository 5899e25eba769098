"""`convoy launch` as a user calls it: real processes that train together."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys

import convoy
import keras
import numpy as np
import pytest
from convoy.cli import launch as launch_command
from convoy.distributed.process import COORDINATOR, COUNT, INDEX
from tests.equivalence.side_by_side import ATOL, RTOL
from tests.launch import worker
from tests.launch.running import SCRIPT, SOURCE, assert_same_run, in_one_process, launch, outcomes

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """An undisturbed run in two processes: its folder and its result."""
    folder = tmp_path_factory.mktemp("whole")
    words = [SCRIPT, folder, "--checkpoints", folder / "checkpoints"]
    ended = launch("--num-instances", 2, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder, ended


def test_two_processes_train_as_one_does_and_the_first_shows_progress(two_processes):
    folder, ended = two_processes
    first, second = outcomes(folder, 2)
    assert first["processes"] == 2
    assert first == second
    assert_same_run(first, in_one_process(2))
    assert [line[:3] for line in ended.stdout.splitlines() if "Epoch 1/3" in line] == ["[0]"]


@pytest.mark.slow
@pytest.mark.parametrize("arrangement", [(2, 4), (4, 4)])
def test_more_processes_and_replicas_train_as_one_does(tmp_path, arrangement):
    processes, replicas = arrangement
    ended = launch("--num-instances", processes, "--num-replicas", replicas, SCRIPT, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = outcomes(tmp_path, processes)
    assert all(outcome == found[0] for outcome in found)
    assert_same_run(found[0], in_one_process(replicas))


@pytest.mark.slow
def test_each_process_reads_its_own_batches_of_a_dataset(tmp_path):
    ended = launch("--num-instances", 2, SCRIPT, tmp_path, "--data-set")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second = outcomes(tmp_path, 2)
    batches, last = worker.SAMPLES // 4, 2
    # Each looks at two, to build the model and to see what they are like; all read the last update.
    assert [len(outcome["read"]) for outcome in (first, second)] == [2 + batches + last] * 2
    assert set(first["read"]) | set(second["read"]) == set(range(batches))
    keras.utils.set_random_seed(worker.SEED)
    expected = worker.train_on_data_set(convoy.Strategy(devices=2))
    for a, b in zip(first["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_pipelines_in_two_processes_train_as_two_in_one_do(tmp_path):
    words = ["--num-instances", 2, "--num-replicas", 2, "--devices-per-replica", 2]
    ended = launch(*words, SCRIPT, tmp_path, "--staged", "plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second = outcomes(tmp_path, 2)
    assert first == second
    assert_same_run(first, in_one_process(4, staged="plain"))


ACROSS = ["--num-instances", 2, "--num-replicas", 1, "--devices-per-replica", 2]


@pytest.mark.parametrize(
    "kind",
    ["plain", *(pytest.param(k, marks=pytest.mark.slow) for k in ("zero-bubble", "scaled"))],
)
def test_a_pipeline_across_two_processes_ends_with_the_bits_of_one(tmp_path, kind):
    ended = launch(*ACROSS, SCRIPT, tmp_path, "--staged", kind)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second = outcomes(tmp_path, 2)
    assert first == second
    one = in_one_process(2, staged=kind)
    assert first == one | {"processes": 2}
    assert_same_run(first, one)
    # While they train, each weight is in one of the processes alone.
    held = [json.loads((tmp_path / f"held-{process}").read_text()) for process in range(2)]
    assert all(one != other for one, other in zip(*held, strict=True))


@pytest.mark.slow
def test_two_replicas_of_a_pipeline_across_four_processes_train_as_one_process_does(tmp_path):
    words = ["--num-instances", 4, "--num-replicas", 2, "--devices-per-replica", 2]
    ended = launch(*words, SCRIPT, tmp_path, "--staged", "plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = outcomes(tmp_path, 4)
    assert all(outcome == found[0] for outcome in found)
    assert_same_run(found[0], in_one_process(4, staged="plain"))


@pytest.mark.slow
def test_a_callback_that_reads_weights_is_refused_where_each_process_has_only_some(tmp_path):
    script = tmp_path / "stops_early.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        "import keras, worker\n"
        "model = worker.make_staged(worker.strategy_for('plain'), 'plain')\n"
        "stop = keras.callbacks.EarlyStopping('loss', restore_best_weights=True)\n"
        "model.fit(*worker.data(), batch_size=4, callbacks=[stop], verbose=0)\n"
    )
    ended = launch(*ACROSS, script)
    assert ended.returncode == 1
    assert "EarlyStopping reads all weights" in ended.stdout
    assert "Use convoy.Checkpoints" in ended.stdout


@pytest.mark.slow
def test_a_pipeline_across_processes_that_is_killed_ends_with_the_same_bits(tmp_path):
    words = ["--staged", "plain", "--checkpoints", tmp_path / "checkpoints"]
    ended = launch(*ACROSS, "--max-restarts", 1, SCRIPT, tmp_path, *words, "--die", "1:8:SIGKILL")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "was terminated by SIGKILL" in ended.stderr
    first, second = outcomes(tmp_path, 2)
    assert first == second == in_one_process(2, staged="plain") | {"processes": 2}


@pytest.mark.slow
def test_a_killed_process_ends_the_run_and_a_restart_gives_the_same_bits(two_processes, tmp_path):
    words = [SCRIPT, tmp_path, "--checkpoints", tmp_path / "checkpoints", "--die", "1:3:SIGKILL"]
    ended = launch("--num-instances", 2, "--max-restarts", 1, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "process 1 on localhost" in ended.stderr
    assert "was terminated by SIGKILL" in ended.stderr
    assert "restarting all processes; 0 restarts are left" in ended.stderr
    assert outcomes(tmp_path, 2) == outcomes(two_processes[0], 2)


@pytest.mark.slow
def test_without_restarts_the_status_is_that_of_the_signal(tmp_path):
    ended = launch("--num-instances", 2, SCRIPT, tmp_path, "--die", "1:3:SIGKILL")
    assert ended.returncode == 128 + signal.SIGKILL
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSTOP])
def test_a_process_that_exits_or_hangs_ends_the_others(tmp_path, number):
    words = [
        SCRIPT,
        tmp_path,
        "--checkpoints",
        tmp_path / "checkpoints",
        "--die",
        f"1:3:{number.name}",
    ]
    ended = launch("--num-instances", 2, "--heartbeat-timeout", 5, *words)
    if number == signal.SIGTERM:
        assert ended.returncode == 75, ended.stdout + ended.stderr
        assert "a signal to another process, exit status 75" in ended.stdout
    else:
        assert ended.returncode == 1
        assert "stopped sending heartbeats" in ended.stderr
    ended = launch("--num-instances", 2, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_plain_script_keeps_its_batch_size_as_the_global_one(tmp_path, monkeypatch, capsys):
    script = tmp_path / "plain.py"
    script.write_text(
        "import sys, keras, numpy as np\n"
        "x = np.arange(32).reshape(8, 4) / 32\n"
        "def train(*layers):\n"
        "    keras.utils.set_random_seed(0)\n"
        "    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), *layers])\n"
        "    model.compile('sgd', 'mse')\n"
        "    model.fit(x, x[:, :2], batch_size=4, verbose=0, shuffle=False)\n"
        "    return model\n"
        "model = train()\n"
        "kind = type(vars(model).get('set_pipelining_options')).__name__\n"
        "print(sys.argv[1], kind, *np.ravel(model.get_weights()[0]))\n"
        "model = train(keras.layers.BatchNormalization())\n"
        "print(*np.concatenate([np.ravel(value) for value in model.get_weights()]))\n"
    )
    ended = launch("--replicas", 2, script, "argument")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Models that are made outside of a scope are those of stock Keras.
    monkeypatch.setattr(sys, "argv", [str(script), "argument"])
    runpy.run_path(str(script))
    (rank, *words), (_, *normalised) = map(str.split, ended.stdout.splitlines())
    expected, expected_normalised = map(str.split, capsys.readouterr().out.splitlines())
    assert [rank, *words[:2]] == ["[0]", "argument", "method"]
    assert expected[:2] == ["argument", "NoneType"]
    np.testing.assert_allclose(np.array(words[2:], float), np.array(expected[2:], float), rtol=1e-6)
    found, wanted = (np.array(numbers, float) for numbers in (normalised, expected_normalised))
    np.testing.assert_allclose(found, wanted, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "There is no program to run"),
        (["--num-instances", "2", "missing.py"], "missing.py does not exist"),
        (["--replicas", "2", "ls"], "--replicas runs Python scripts"),
        (["--num-instances", "2", "--num-replicas", "3", "ls"], "Pass --num-replicas 4"),
        (["--replicas", "2", "--num-replicas", "3", str(SCRIPT)], "contradict each other"),
        (["--host", "a", "--hostfile", "b", "ls"], "both passed"),
        (["--heartbeat-timeout", "0", "ls"], "--heartbeat-timeout 0: pass more than 0"),
        (["--heartbeat-timeout", "nan", "ls"], "--heartbeat-timeout: 'nan' is not a finite number"),
        (["--max-restarts", "-1", "ls"], "--max-restarts -1: pass 0 or more"),
        (["--num-instances", "0", "ls"], "--num-instances 0: pass 1 or more"),
        (["--num-replicas", "0", "ls"], "--num-replicas 0: pass 1 or more"),
        (["--port", "65536", "ls"], "--port 65536: pass 65535 or less"),
        (["--only-output-from-instance", "1", "ls"], "Pass less than 1, the number of instances"),
        (["--num-instances", "1000000000", "ls"], "--num-instances 1000000000 is too large"),
        (["--num-replicas", "1000000000", "ls"], "--num-replicas 1000000000 with"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, words, message):
    assert launch_command.main(words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_port_that_is_taken_is_one_line_and_nothing_starts(tmp_path):
    script = tmp_path / "started.py"
    script.write_text(f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'started').touch()")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = launch("--num-instances", 2, "--port", port, script)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        f"convoy launch: --port {port} cannot be used: Address already in use. Pass another "
        "--port, or end the program that uses it.\n"
    )
    assert not (tmp_path / "started").exists()


def test_a_process_that_cannot_join_prints_one_line(tmp_path):
    script = tmp_path / "joins.py"
    script.write_text("import convoy\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        # As on another host, whose ports the launcher cannot check.
        place = {COORDINATOR: address, COUNT: "2", INDEX: "0", "PYTHONPATH": str(SOURCE)}
        ended = subprocess.run(
            [sys.executable, "-m", "convoy_command.program", script],
            env=os.environ | place,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == (
        f"convoy: error: {address} cannot be used: Address already in use. Pass another --port, or "
        "end the program that uses it.\n"
    )


def test_the_output_of_a_failed_process_is_shown_once(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys\nsys.exit('the disk is full')\n")
    ended = launch(script)
    assert ended.returncode == 1
    assert ended.stdout == "[0] the disk is full\n"
    assert "exited with status 1" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_output_that_was_not_shown_is_in_the_message_about_a_failure(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, sys, time\n"
        "sys.exit('the disk is full') if os.environ['CONVOY_PROCESS'] == '1' else time.sleep(60)\n"
    )
    ended = launch("--num-instances", 2, "--only-output-from-instance", 0, script)
    assert ended.returncode == 1
    assert "  [1] the disk is full\n" in ended.stderr


@pytest.mark.parametrize(
    ("program", "name"), [("/usr/bin/poprun", "poprun"), ("/usr/bin/convoy", "convoy launch")]
)
def test_help_and_messages_have_the_name_of_the_command(monkeypatch, capsys, program, name):
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    with pytest.raises(SystemExit):
        launch_command.main(["--help"])
    assert capsys.readouterr().out.startswith(f"usage: {name} [options] script.py")
    assert launch_command.main([]) == 2
    assert capsys.readouterr().err.startswith(f"{name}: There is no program to run. Usage: {name}")


def test_greetings_of_the_collectives_are_not_shown():
    greeting = "[Gloo] Rank 0 is connected to 1 peer ranks."
    ended = launch(
        "--num-instances", "1", "printf", f"{greeting}\\nfirst\\n[Gloo] Rank 0 timed out\\n"
    )
    assert ended.stdout.splitlines() == ["[0] first", "[0] [Gloo] Rank 0 timed out"]


def test_graphcores_options_are_accepted_and_those_without_effect_named(capsys):
    words = "--vipu-partition p --numa-aware --ipus-per-replica 1 --num-replicas 1 true"
    assert launch_command.main(words.split()) == 0
    assert "No effect here: --vipu-partition." in capsys.readouterr().err
    assert launch_command.main(["--numa-aware", "1", "--num-instances", "1", "true"]) == 0


def test_a_cluster_determines_the_index_of_a_process(tmp_path):
    script = tmp_path / "show.py"
    script.write_text(
        "import os\n"
        "for name in ('COORDINATOR', 'PROCESSES', 'PROCESS', 'DEVICES', 'DEVICES_PER_REPLICA',\n"
        "             'HEARTBEAT_TIMEOUT'):\n"
        "    print(os.environ['CONVOY_' + name])\n"
    )
    counts = ["--num-replicas", "4", "--devices-per-replica", "2", "--max-restarts", "3"]
    words = [*counts, "--heartbeat-timeout", "9", "--port", "4711", str(script)]
    variables = {"PROCID": "1", "STEP_NUM_TASKS": "2", "STEP_NODELIST": "localhost"}
    environment = os.environ | {f"SLURM_{name}": value for name, value in variables.items()}
    ended = subprocess.run(
        [sys.executable, "-m", "convoy", "launch", *words],
        env=environment | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert ended.stdout.split() == ["127.0.0.1:4711", "2", "1", "4", "2", "9.0"]
    assert ended.stderr.splitlines() == [
        "convoy launch: process 1 of 2, started by Slurm.",
        "convoy launch: No effect in a process of Slurm: --max-restarts.",
    ]
