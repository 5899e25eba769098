"""Many stops of a server by SIGTERM under load: no request may be without an answer.

    python -m tests.serving.stops [--stops 100] [--output FILE]

It should report: no request lost, every exit status 0. Keep-alive clients send requests one after
the other, and connect again when the server tells them to. The end of a server is a refused
connection. gRPC clients call until the server says that it stops, or is gone. The servers have
default settings, but for their ports. They are forked from one process that has imported
everything, so that a stop takes seconds; all load is on this machine.
"""

import argparse
import collections
import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CLIENTS = 12
GRPC_CLIENTS = 4
# Parts of the errors of calls that the server did not begin to handle.
REFUSALS = ("The server stops", "Failed to connect", "Connection refused")
BODY = json.dumps({"instances": [1.0]})
EXPORT = (
    "import convoy, sys; from tests.serving.models import half_plus; "
    "convoy.export(half_plus(2), sys.argv[1], batch_sizes=[1, 8])"
)


class Client:
    """A client with one connection at a time.

    Attributes:
        outcomes: number of requests by their outcome.
    """

    def __init__(self, port, seed):
        self.port, self.rng = port, random.Random(seed)
        self.outcomes = collections.Counter()

    def run(self):
        connection = self._connect()
        while connection is not None:
            try:
                connection.request("POST", "/v1/models/half:predict", BODY)
                response = connection.getresponse()
                answer = response.read()
                right = response.status == 200 and json.loads(answer) == {"predictions": [2.5]}
                self.outcomes["answered" if right else f"status {response.status}"] += 1
                closes = response.will_close
            except (OSError, http.client.HTTPException) as error:
                self.outcomes[f"lost: {type(error).__name__}"] += 1
                closes = True
            time.sleep(self.rng.choice((0.0, 0.0, 0.001, 0.02)))
            if closes:
                connection.close()
                connection = self._connect()

    def _connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.connect()
        except OSError:
            return None
        return connection


class GrpcClients:
    """Clients in a process of their own: gRPC does not support forks of a process that uses it."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--grpc-clients"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, port):
        """Let them call a server until it stops."""
        self.process.stdin.write(f"{port}\n")
        self.process.stdin.flush()

    def outcomes(self):
        """Wait until the server has stopped, and return the number of calls by their outcome."""
        return collections.Counter(json.loads(self.process.stdout.readline()))

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def call_until_stopped(port, outcomes):
    """Call a server until it is gone.

    A call that the server refuses because it stops, or that finds no server, can be repeated. After
    any other error, such as a closed connection, and a wrong answer, the call is lost.
    """
    import grpc
    from convoy.serving import tensorflow_serving_pb2 as messages

    request = messages.PredictRequest()
    request.model_spec.name = "half"
    tensor = request.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=1)
    tensor.float_val.append(1.0)
    data = request.SerializeToString()
    # Otherwise, the clients share a connection.
    own = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", own) as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        while True:
            try:
                answer = messages.PredictResponse.FromString(call(data, timeout=60))
            except grpc.RpcError as error:
                if not any(text in error.details() for text in REFUSALS):
                    outcomes[f"gRPC: {error.code().name}: {error.details()[:80]}"] += 1
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    return
            else:
                right = list(answer.outputs["output_0"].float_val) == [2.5]
                outcomes["answered by gRPC" if right else "gRPC: wrong"] += 1


def run_grpc_clients():
    """Call the servers whose ports arrive, one per line, and print the outcomes for each."""
    for line in sys.stdin:
        counts = [collections.Counter() for _ in range(GRPC_CLIENTS)]
        threads = [
            threading.Thread(target=call_until_stopped, args=(int(line), count)) for count in counts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps(sum(counts, collections.Counter())), flush=True)


def start(folder):
    """Fork a server, and return its process and ports."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        from convoy_command import cli

        os.dup2(writer, 1)
        sys.stdout = os.fdopen(1, "w")
        os._exit(
            cli.main(["serve", "--model", f"half={folder}", "--port", "0", "--grpc-port", "0"])
        )
    os.close(writer)
    with os.fdopen(reader) as lines:
        ports = [int(lines.readline().rstrip("/\n").split(":")[-1]) for _ in range(2)]
    return pid, *ports


def stop_once(folder, seed, grpc_clients):
    """Start a server, stop it under load, and return outcomes, exit status and seconds."""
    pid, port, grpc_port = start(folder)
    try:
        grpc_clients.start(grpc_port)
        clients = [Client(port, 1000 * seed + number) for number in range(CLIENTS)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        time.sleep(random.Random(seed).uniform(0.2, 0.6))
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
        seconds = time.monotonic() - began
        pid = None
        for thread in threads:
            thread.join()
    finally:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    outcomes = sum((client.outcomes for client in clients), grpc_clients.outcomes())
    return outcomes, os.waitstatus_to_exitcode(status), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--output", type=Path, help="a Markdown file for the figures")
    parser.add_argument("--grpc-clients", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.grpc_clients:
        run_grpc_clients()
        return 0
    outcomes, statuses, seconds = collections.Counter(), collections.Counter(), []
    with tempfile.TemporaryDirectory() as name, contextlib.closing(GrpcClients()) as grpc_clients:
        folder = Path(name) / "half"
        subprocess.run([sys.executable, "-c", EXPORT, str(folder)], check=True)
        import convoy.cli.serve  # noqa: F401 - before the forks

        for number in range(options.stops):
            found, status, took = stop_once(folder, number, grpc_clients)
            outcomes += found
            statuses[status] += 1
            seconds.append(took)
    lost = sum(count for outcome, count in outcomes.items() if not outcome.startswith("answered"))
    rows = {
        "stops": options.stops,
        "requests, by outcome": dict(sorted(outcomes.items())),
        "exit statuses": dict(statuses),
        "seconds of a stop, median and maximum": (
            f"{sorted(seconds)[len(seconds) // 2]:.2f}, {max(seconds):.2f}"
        ),
    }
    report = "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())])
    print(report)
    if options.output is not None:
        options.output.write_text(f"# Stops of a server\n\n`make stops-serving`\n\n{report}\n")
    kinds = {outcome for outcome in outcomes if outcome.startswith("answered")}
    return 1 if lost or len(kinds) < 2 or set(statuses) != {0} else 0


if __name__ == "__main__":
    sys.exit(main())
