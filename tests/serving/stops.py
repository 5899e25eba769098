"""Many stops of a server by SIGTERM under load: no request may be without an answer.

    python -m tests.serving.stops [--stops 100] [--output FILE]

It should report: no request lost, every exit status 0. Keep-alive clients send requests one after
the other, and connect again when the server tells them to. The end of a server is a refused
connection. The servers are forked from one process that has imported everything, so that a stop
takes seconds; all load is on this machine, from 12 clients.
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


def start(folder):
    """Fork a server, and return its process and port."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        from convoy_command import cli

        os.dup2(writer, 1)
        words = ["serve", "--model", f"half={folder}", "--port", "0", "--grpc-port", "-1"]
        sys.stdout = os.fdopen(1, "w")
        os._exit(cli.main([*words, "--try-versions", "false", "--poll-seconds", "0"]))
    os.close(writer)
    with os.fdopen(reader) as lines:
        return pid, int(lines.readline().rstrip("/\n").split(":")[-1])


def stop_once(folder, seed):
    """Start a server, stop it under load, and return outcomes, exit status and seconds."""
    pid, port = start(folder)
    try:
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
    outcomes = sum((client.outcomes for client in clients), collections.Counter())
    return outcomes, os.waitstatus_to_exitcode(status), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--output", type=Path, help="a Markdown file for the figures")
    options = parser.parse_args()
    outcomes, statuses, seconds = collections.Counter(), collections.Counter(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "half"
        subprocess.run([sys.executable, "-c", EXPORT, str(folder)], check=True)
        import convoy.cli.serve  # noqa: F401 - before the forks

        for number in range(options.stops):
            found, status, took = stop_once(folder, number)
            outcomes += found
            statuses[status] += 1
            seconds.append(took)
    lost = sum(count for outcome, count in outcomes.items() if outcome != "answered")
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
    return 1 if lost or set(statuses) != {0} else 0


if __name__ == "__main__":
    sys.exit(main())
