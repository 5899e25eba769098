"""Processes with different addresses: in network namespaces, and over ssh."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from convoy.launch.topology import free_port
from tests import parts

from .running import SCRIPT, SOURCE, assert_same_run, in_one_process, is_alive, outcomes, wait_until

pytestmark = pytest.mark.slow

ADDRESSES = ("10.213.0.1", "10.213.0.2")
# Two names of this machine, each of which is reached at an address of its own.
LOOPBACKS = ("127.0.0.2", "127.0.0.3")
SPACES = ("convoy-test-1", "convoy-test-2")
UNTIL = 240

# Trains until somebody ends it, and says when it has begun.
ENDLESS = """
import os, pathlib, sys
import convoy, keras, numpy as np
folder = pathlib.Path(sys.argv[1])
(folder / f"pid-{os.getpid()}").write_text(str(os.getpid()))

class Says(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        (folder / f"trains-{os.environ['CONVOY_PROCESS']}").touch()

with convoy.Strategy().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
x = np.zeros((8, 4), "float32")
model.fit(x, x[:, :2], batch_size=4, epochs=10**9, verbose=0, callbacks=[Says()])
"""


def start(words, tools, folder):
    """Start `convoy launch` with a folder of programs in front of the path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("XLA_")}
    environment |= {
        "CONVOY_COMPILATION_CACHE": "0",
        "PYTHONPATH": str(SOURCE),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    with (folder / "printed").open("w") as printed:
        return subprocess.Popen(
            [sys.executable, "-m", "convoy", "launch", *map(str, words)],
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )


def ends(launcher, folder):
    """Wait for the launcher, for a bounded time, and return its status and output."""
    try:
        status = launcher.wait(UNTIL)
    finally:
        launcher.kill()
        launcher.wait()
    return status, (folder / "printed").read_text()


def program(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@pytest.fixture
def namespaces(tmp_path):
    """Two connected network namespaces, and an `ssh` that enters them."""
    parts.require("ip")
    made = ip("netns", "add", SPACES[0])
    if made.returncode:
        pytest.skip(f"network namespaces: this machine does not allow them: {made.stderr.strip()}")
    try:
        assert ip("netns", "add", SPACES[1]).returncode == 0
        cable = ["type", "veth", "peer", "name", "cable", "netns", SPACES[1]]
        found = ip("link", "add", "cable", "netns", SPACES[0], *cable)
        if found.returncode:
            pytest.skip(f"network namespaces: no cable can be made: {found.stderr.strip()}")
        for space, address in zip(SPACES, ADDRESSES, strict=True):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                assert ip("-n", space, "link", "set", device, "up").returncode == 0
        lines = [
            f'  {a}) exec ip netns exec {s} sh -c "$2";;'
            for a, s in zip(ADDRESSES, SPACES, strict=True)
        ]
        text = "\n".join(
            ["#!/bin/sh", "shift 2  # -o BatchMode=yes", 'case "$1" in', *lines, "esac"]
        )
        program(tmp_path / "tools", "ssh", text + "\n")
        yield tmp_path / "tools"
    finally:
        for space in SPACES:
            ip("netns", "del", space)


def test_a_pipeline_across_hosts_with_addresses_of_their_own(tmp_path, namespaces):
    words = ["--host", ",".join(ADDRESSES), "--num-replicas", 1, "--devices-per-replica", 2]
    launcher = start([*words, SCRIPT, tmp_path, "--staged", "plain"], namespaces, tmp_path)
    status, printed = ends(launcher, tmp_path)
    assert status == 0, printed
    first, second = outcomes(tmp_path, 2)
    assert first == second
    # Each host gives its process all cores, so that sums are in another order.
    assert_same_run(first, in_one_process(2, staged="plain"))


def test_a_broken_link_ends_all_processes_and_is_reported(tmp_path, namespaces):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    words = ["--host", ",".join(ADDRESSES), "--heartbeat-timeout", 10, script, tmp_path]
    launcher = start(words, namespaces, tmp_path)
    try:
        wait_until(
            lambda: len(list(tmp_path.glob("trains-*"))) == 2 or launcher.poll() is not None, UNTIL
        )
        assert launcher.poll() is None, (tmp_path / "printed").read_text()
        assert ip("-n", SPACES[1], "link", "set", "cable", "down").returncode == 0
    finally:
        status, printed = ends(launcher, tmp_path)
    assert status not in (0, -signal.SIGKILL), printed
    failed = re.search(r"convoy launch: process (\d) on (\S+) \(pid", printed)
    assert failed, printed
    assert failed[2] == ADDRESSES[int(failed[1])]
    # Its last lines are repeated only if those of other processes follow them.
    assert f"[{failed[1]}] " in printed
    pids = [int(file.read_text()) for file in tmp_path.glob("pid-*")]
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


@pytest.fixture
def ssh(tmp_path):
    """An ssh server on loopback addresses, and an `ssh` with its port and key."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") or unpacked(tmp_path)
    if server is None or shutil.which("ssh") is None:
        parts.skip("ssh and sshd")
    folder = tmp_path / "server"
    folder.mkdir()
    for name in ("host", "user"):
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(made, check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = free_port()
    (folder / "config").write_text(
        "".join(f"ListenAddress {address}:{port}\n" for address in ("127.0.0.1", *LOOPBACKS))
        + f"HostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    with (folder / "said").open("w") as said:
        running = subprocess.Popen(
            [*around(folder), server, "-D", "-e", "-f", str(folder / "config")],
            env=os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, libraries(tmp_path)))},
            stderr=said,
        )
    try:
        words = f"-F none -p {port} -i {folder}/user -o UserKnownHostsFile=/dev/null"
        quiet = "-o StrictHostKeyChecking=no -o LogLevel=ERROR"
        real = shutil.which("ssh")
        program(tmp_path / "tools", "ssh", f'#!/bin/sh\nexec {real} {words} {quiet} "$@"\n')
        probe = [str(tmp_path / "tools" / "ssh"), "127.0.0.1", "true"]
        wait_until(
            lambda: (
                running.poll() is not None
                or not subprocess.run(probe, capture_output=True).returncode
            ),
            UNTIL,
        )
        if running.poll() is not None:
            why = (folder / "said").read_text().strip()
            pytest.skip(f"ssh: sshd does not run here: {why}")
        yield tmp_path / "tools"
    finally:
        running.terminate()
        running.wait()


def around(folder):
    """Return a command prefix that gives the server its user and its folder, as root."""
    if os.geteuid() != 0:
        return []
    users = Path("/etc/passwd").read_text()
    if "\nsshd:" not in users:
        users += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
    (folder / "passwd").write_text(users)
    mount = f"mount --bind {folder}/passwd /etc/passwd && mount -t tmpfs none /run"
    return ["unshare", "-m", "sh", "-c", f'{mount} && mkdir /run/sshd && exec "$@"', "sh"]


def libraries(folder):
    return {file.parent for file in (folder / "package").glob("usr/lib/*/*.so.*")}


def unpacked(folder):
    """Download Debian's package without installing it, and return its server if possible."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    package = folder / "package"
    package.mkdir()
    wanted = ["openssh-server", "libwrap0"]
    subprocess.run(["apt-get", "download", *wanted], cwd=package, capture_output=True)
    for file in package.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(file), str(package)], check=True)
    found = package / "usr" / "sbin" / "sshd"
    return str(found) if found.exists() else None


def test_hosts_are_reached_by_ssh_and_their_processes_train_together(tmp_path, ssh):
    launcher = start(["--host", ",".join(LOOPBACKS), SCRIPT, tmp_path], ssh, tmp_path)
    status, printed = ends(launcher, tmp_path)
    assert status == 0, printed
    first, second = outcomes(tmp_path, 2)
    assert first == second
    assert_same_run(first, in_one_process(2))


def test_processes_on_another_host_end_with_the_launcher(tmp_path, ssh):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    launcher = start(["--host", ",".join(LOOPBACKS), script, tmp_path], ssh, tmp_path)
    try:
        wait_until(
            lambda: len(list(tmp_path.glob("trains-*"))) == 2 or launcher.poll() is not None, UNTIL
        )
        assert launcher.poll() is None, (tmp_path / "printed").read_text()
    finally:
        launcher.kill()
        launcher.wait()
    pids = [int(file.read_text()) for file in tmp_path.glob("pid-*")]
    wait_until(lambda: not any(map(is_alive, pids)), UNTIL)
