"""A server in a separate process, and a client that measures how long others wait."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc


class ServerProcess:
    """`convoy serve` with default settings, but for its ports."""

    def __init__(self, process, port, grpc_port, log):
        self.process, self.port, self.grpc_port, self.log = process, port, grpc_port, log

    def peak_megabytes(self):
        """The largest memory of the process since `forget_peak`, or else since its start."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1024

    def forget_peak(self):
        """Make the present memory the largest one, and return it.

        Otherwise, an attack would be compared with the largest of all attacks before it.
        """
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.peak_megabytes()

    def trials(self):
        """The ids of the processes that try versions."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for file in children for pid in file.read_text().split()]
        return [pid for pid in pids if b"trial" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def post(self, path, body, connection=None, **headers):
        """Return status and body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(self.connect()) as own:
            used = connection or own
            used.request("POST", path, data, headers)
            response = used.getresponse()
            return response.status, response.read()

    def get(self, path):
        """Return status and body."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def grpc(self, method, request, timeout=60):
        """Return the status code of a call, and its details or the bytes of the response."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            call = channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
            try:
                return "OK", call(request, timeout=timeout)
            except grpc.RpcError as error:
                return error.code().name, error.details()

    def stop(self, seconds=60):
        """Return the exit status after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


@contextlib.contextmanager
def serving(folder, *words, **models):
    """Start a server with models by name, each in its folder."""
    command = [sys.executable, "-m", "convoy", "serve", "--port", "0", "--grpc-port", "0", *words]
    for name, path in models.items():
        command += ["--model", f"{name}={path}"]
    log = folder / "server.log"
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        ports = [int(process.stdout.readline().rstrip("/\n").split(":")[-1]) for _ in range(2)]
        yield ServerProcess(process, *ports, log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(server, model, version, state):
    """Wait until a version is in a state, and return its error."""
    began = time.monotonic()
    while time.monotonic() < began + 120:
        _, text = server.get(f"/v1/models/{model}")
        for found in json.loads(text).get("model_version_status", ()):
            if found["version"] == str(version) and found["state"] == state:
                return found["status"]["error_message"]
        time.sleep(0.1)
    raise AssertionError(f"{model}: version {version} is not {state}: {text}")


class OtherClient:
    """A client that sends small requests one after the other, and times each."""

    def __init__(self, server, path="/v1/models/half:predict", answer=(2.5,)):
        self.server, self.path, self.answer = server, path, list(answer)
        self.connection = server.connect()
        self.failures = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def request(self):
        """Return the seconds of a request."""
        began = time.perf_counter()
        status, body = self.server.post(self.path, {"instances": [1.0]}, self.connection)
        if status != 200 or json.loads(body) != {"predictions": self.answer}:
            self.failures.append((status, body))
        return time.perf_counter() - began

    def times(self, goes_on=lambda: False, requests=30):
        """Return the seconds of some requests; they go on as long as a function says."""
        seconds = []
        while len(seconds) < requests or goes_on():
            seconds.append(self.request())
        return seconds


def cpu_seconds(pid):
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Waits:
    """How long another client waits.

    Attributes:
        quiet: its longest wait without an attack.
        attacked: its longest wait during an attack.
        attack: the seconds of the attack.
        request: the mean seconds of its requests without an attack.
    """

    quiet: float
    attacked: float
    attack: float
    request: float


def waits(server, attack, path="/v1/models/half:predict", answer=(2.5,)):
    """Return how long another client waits otherwise, and during an attack.

    It takes the longest of many requests, because an attack that blocks a server for a moment
    delays few requests. The quiet requests go on for as long as the attack did, so that other
    programs on the machine delay them as often.
    """
    with OtherClient(server, path, answer) as other, ThreadPoolExecutor(1) as thread:
        other.times()
        began = time.perf_counter()
        ended = []
        attacking = thread.submit(attack)
        attacking.add_done_callback(lambda _: ended.append(time.perf_counter()))
        attacked = other.times(lambda: not attacking.done())
        attacking.result()
        end = 2 * time.perf_counter() - began
        quiet = other.times(lambda: time.perf_counter() < end)
    assert not other.failures
    return Waits(max(quiet), max(attacked), ended[0] - began, sum(quiet) / len(quiet))
