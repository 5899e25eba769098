"""Load on a server while versions are rolled out and attackers are among the clients.

    python -m tests.serving.soak [--seconds 600] [--output FILE]

It should report: every request of a good client answered with status 200, none wrong, memory that
grows by at most 5 %, an answer of every good version, and a p99 latency with attackers of at most
1.5 times that without. Otherwise, the exit status is 1. Attackers come and go every few seconds,
so both are measured in one run. Of the versions, one contains a program that would crash the
compiler, one is copied slowly, and one would block its reader. The server is a process of its
own on this machine, and so are the attackers; the load is bounded in time and in open requests.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import convoy
import keras
import numpy as np
from convoy.serving import artifact
from tests.serving.attackers import NAME, PREDICT, is_attacked
from tests.serving.bad_files import picture, with_custom_call

CLIENTS = 24
ROLLOUT_SECONDS = 15.0
MAX_SLOWDOWN = 1.5
# Growth of the memory from the second quarter of the time to the last.
MAX_GROWTH = 1.05
MALICIOUS, HALF_COPIED, BLOCKED = 3, 5, 7


def model(version):
    """A model whose answer tells its version: the sum of the inputs, plus a thousand of it."""
    x = keras.Input((16,), name="x")
    dense = keras.layers.Dense(1, kernel_initializer="ones", name="sum")
    outputs = keras.layers.Rescaling(1.0, 1000.0 * version)(dense(x))
    return keras.Model(x, outputs)


class Soak:
    def __init__(self, port, pid, folder, began, options):
        self.url = f"http://127.0.0.1:{port}{PREDICT}"
        self.pid, self.folder = pid, folder
        self.began, self.until = began, began + options.seconds
        self.rollout_seconds, self.rolled_out = options.rollout_seconds, 1
        self.codes = Counter()
        self.latencies = []
        self.wrong = 0
        self.lost = 0
        self.versions = Counter()
        self.attacks = {}
        self.memory = []
        self.latencies_by_phase = {False: [], True: []}

    @property
    def goes_on(self):
        return time.monotonic() < self.until

    async def client(self, session, seed):
        rng = random.Random(seed)
        while self.goes_on:
            rows = [[rng.randrange(10) for _ in range(16)] for _ in range(rng.choice((1, 1, 2, 5)))]
            began, attacked = time.perf_counter(), is_attacked(self.began)
            try:
                body = json.dumps({"instances": rows})
                async with session.post(self.url, data=body) as answer:
                    content = await answer.json()
            except (aiohttp.ClientError, OSError):
                self.lost += 1
                continue
            self.codes[answer.status] += 1
            if answer.status == 200:
                self.latencies.append(time.perf_counter() - began)
                if attacked == is_attacked(self.began):
                    self.latencies_by_phase[attacked].append(self.latencies[-1])
                self.check(rows, content["predictions"])

    def check(self, rows, predictions):
        pairs = list(zip(rows, predictions, strict=True))
        found = {round((value - sum(row)) / 1000) for row, (value,) in pairs}
        exact = all((value - sum(row)) % 1000 == 0 for row, (value,) in pairs)
        # All rows of a request are answered by one version.
        if len(found) != 1 or not exact:
            self.wrong += 1
        self.versions.update(found)

    async def roll_out(self):
        version = 1
        while self.goes_on:
            await asyncio.sleep(self.rollout_seconds)
            version += 1
            folder = self.folder / str(version)
            if version == MALICIOUS:
                await asyncio.to_thread(with_custom_call, folder, self.folder / "1")
            elif version in (HALF_COPIED, BLOCKED):
                await asyncio.to_thread(copy_badly, folder, self.folder / "1", version == BLOCKED)
            else:
                await asyncio.to_thread(
                    convoy.export,
                    model(version),
                    self.folder,
                    version=version,
                    batch_sizes=[1, 8, 32],
                )
            self.rolled_out = version

    async def watch(self):
        while self.goes_on:
            self.memory.append(resident_megabytes(self.pid))
            await asyncio.sleep(5)

    async def run(self):
        connector = aiohttp.TCPConnector(limit=CLIENTS)
        async with aiohttp.ClientSession(connector=connector) as session:
            clients = [self.client(session, seed) for seed in range(CLIENTS)]
            await asyncio.gather(*clients, self.roll_out(), self.watch())

    @property
    def slowdown(self):
        """The p99 latency with attackers over that without."""
        quiet, attacked = (self.latencies_by_phase[phase] for phase in (False, True))
        return np.percentile(attacked, 99) / np.percentile(quiet, 99)

    @property
    def memory_by_quarter(self):
        """The memory in the second quarter of the time, and in the last."""
        quarter = max(1, len(self.memory) // 4)
        parts = self.memory[quarter : 2 * quarter], self.memory[-quarter:]
        return [np.median(part) for part in parts]

    @property
    def missing_versions(self):
        """The good versions that never answered. The last one may not have been loaded in time."""
        # The one that is copied slowly has the content of version 1, and answers as that.
        good = set(range(1, self.rolled_out)) - {MALICIOUS, HALF_COPIED, BLOCKED}
        return sorted(good - set(self.versions))

    def failures(self, status):
        """Return what went wrong, one line each."""
        early, late = self.memory_by_quarter
        refused = {code: count for code, count in self.codes.items() if code != 200}
        checks = {
            f"the exit status was {status}": status,
            f"{self.wrong} answers were wrong": self.wrong,
            f"{self.lost} requests were lost": self.lost,
            f"requests were refused, by status: {refused}": refused,
            f"versions did not answer: {self.missing_versions}": self.missing_versions,
            f"memory grew from {early:.0f} to {late:.0f} MB": late > MAX_GROWTH * early,
            f"p99 grew to {self.slowdown:.2f} times": self.slowdown > MAX_SLOWDOWN,
        }
        return [text for text, failed in checks.items() if failed]

    def report(self, seconds):
        p50, p95, p99 = (1000 * value for value in np.percentile(self.latencies, (50, 95, 99)))
        early, late = self.memory_by_quarter
        return "\n".join(
            [
                f"| seconds | {seconds:.0f} |",
                f"| requests answered, by status | {dict(sorted(self.codes.items()))} |",
                f"| requests lost | {self.lost} |",
                f"| wrong answers | {self.wrong} |",
                f"| requests per second | {sum(self.codes.values()) / seconds:.0f} |",
                f"| latency p50, p95, p99 in ms | {p50:.1f}, {p95:.1f}, {p99:.1f} |",
                f"| p99 with attackers over p99 without | {self.slowdown:.2f} |",
                f"| versions rolled out, and that answered | {self.rolled_out}, "
                f"{len(self.versions)} |",
                f"| attacks | {self.attacks} |",
                f"| memory in MB, second quarter and last quarter | {early:.0f}, {late:.0f} |",
            ]
        )


def copy_badly(folder, source, blocks):
    """Copy a version without its weights, and complete it later; or put a pipe in their place."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(artifact.WEIGHTS))
    if blocks:
        os.mkfifo(folder / artifact.WEIGHTS)
    else:
        time.sleep(3)
        shutil.copy(source / artifact.WEIGHTS, folder)


def resident_megabytes(pid):
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rollout-seconds", type=float, default=ROLLOUT_SECONDS)
    parser.add_argument("--output", type=Path, help="a Markdown file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, pictures = Path(name) / NAME, Path(name) / "pictures"
        convoy.export(model(1), folder, batch_sizes=[1, 8, 32])
        convoy.export(picture(), pictures, batch_sizes=[1, 4])
        command = [sys.executable, "-m", "convoy", "serve", "--port", "0", "--grpc-port", "0"]
        command += ["--model", f"{NAME}={folder}", "--model", f"pictures={pictures}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                lines = [server.stdout.readline() for _ in range(2)]
                ports = [line.rstrip("/\n").split(":")[-1] for line in lines]
                began = time.monotonic()
                soak = Soak(ports[0], server.pid, folder, began, options)
                command = [sys.executable, "-m", "tests.serving.attackers", *ports]
                command += [str(began), str(options.seconds)]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attackers:
                    asyncio.run(soak.run())
                    soak.attacks = json.loads(attackers.communicate(timeout=60)[0])
            finally:
                server.send_signal(signal.SIGTERM)
            status = server.wait(60)
    report = (
        f"| | |\n|---|---|\n{soak.report(time.monotonic() - began)}\n| exit status | {status} |"
    )
    print(report)
    if options.output is not None:
        options.output.write_text(f"# Load on a server\n\n`make soak-serving`\n\n{report}\n")
    failures = soak.failures(status)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
