"""Load on a server while versions are rolled out and clients misbehave.

    python -m tests.serving.soak [--seconds 600] [--output FILE]

It should report: every accepted request answered, none wrong, memory flat. The server is a process
of its own on this machine; the load is bounded in time and in requests that are on their way.
"""

import argparse
import asyncio
import json
import os
import random
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

CLIENTS = 24
ROLLOUT_SECONDS = 15.0
NAME = "scaled"


def model(version):
    """A model whose answer tells its version: the sum of the inputs, plus a thousand of it."""
    x = keras.Input((16,), name="x")
    dense = keras.layers.Dense(1, kernel_initializer="ones", name="sum")
    outputs = keras.layers.Rescaling(1.0, 1000.0 * version)(dense(x))
    return keras.Model(x, outputs)


class Soak:
    def __init__(self, url, port, pid, folder, until):
        self.url = f"{url}/v1/models/{NAME}:predict"
        self.port, self.pid, self.folder, self.until = port, pid, folder, until
        self.codes = Counter()
        self.latencies = []
        self.wrong = 0
        self.lost = 0
        self.versions = Counter()
        self.misbehaved = Counter()
        self.memory = []

    @property
    def goes_on(self):
        return time.monotonic() < self.until

    async def client(self, session, seed):
        rng = random.Random(seed)
        while self.goes_on:
            rows = [[rng.randrange(10) for _ in range(16)] for _ in range(rng.choice((1, 1, 2, 5)))]
            began = time.perf_counter()
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
                self.check(rows, content["predictions"])

    def check(self, rows, predictions):
        pairs = list(zip(rows, predictions, strict=True))
        found = {round((value - sum(row)) / 1000) for row, (value,) in pairs}
        exact = all((value - sum(row)) % 1000 == 0 for row, (value,) in pairs)
        # All rows of a request are answered by one version.
        if len(found) != 1 or not exact:
            self.wrong += 1
        self.versions[found.pop()] += 1

    async def misbehave(self, seed):
        """Be slow, hang up half-way, send too much, or send nonsense."""
        rng = random.Random(seed)
        head = f"POST /v1/models/{NAME}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: "
        while self.goes_on:
            kind = rng.choice(("slow", "half-closed", "oversized", "nonsense"))
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                if kind == "slow":
                    writer.write(f"{head}100\r\n\r\n{{".encode())
                    await asyncio.sleep(rng.random() * 3)
                elif kind == "half-closed":
                    writer.write(f"{head}100\r\n\r\n{{".encode())
                    writer.write_eof()
                    await asyncio.wait_for(reader.read(100), 10)
                elif kind == "oversized":
                    writer.write(f"{head}{1 << 30}\r\n\r\n".encode())
                    for _ in range(64):
                        writer.write(b" " * 65536)
                        await asyncio.wait_for(writer.drain(), 10)
                else:
                    writer.write(rng.randbytes(500) + b"\r\n\r\n")
                    await asyncio.wait_for(reader.read(100), 10)
                writer.close()
            except (OSError, TimeoutError):
                pass
            self.misbehaved[kind] += 1

    async def roll_out(self):
        version = 1
        while self.goes_on:
            await asyncio.sleep(ROLLOUT_SECONDS)
            version += 1
            await asyncio.to_thread(
                convoy.export, model(version), self.folder, batch_sizes=[1, 8, 32]
            )

    async def watch(self):
        while self.goes_on:
            self.memory.append(resident_megabytes(self.pid))
            await asyncio.sleep(5)

    async def run(self):
        connector = aiohttp.TCPConnector(limit=CLIENTS)
        async with aiohttp.ClientSession(connector=connector) as session:
            clients = [self.client(session, seed) for seed in range(CLIENTS)]
            bad = [self.misbehave(seed) for seed in range(4)]
            await asyncio.gather(*clients, *bad, self.roll_out(), self.watch())

    def report(self, seconds):
        p50, p95, p99 = (1000 * value for value in np.percentile(self.latencies, (50, 95, 99)))
        quarter = max(1, len(self.memory) // 4)
        early, late = (
            np.median(self.memory[quarter : 2 * quarter]),
            np.median(self.memory[-quarter:]),
        )
        return "\n".join(
            [
                f"| seconds | {seconds:.0f} |",
                f"| requests answered, by status | {dict(sorted(self.codes.items()))} |",
                f"| requests lost | {self.lost} |",
                f"| wrong answers | {self.wrong} |",
                f"| requests per second | {sum(self.codes.values()) / seconds:.0f} |",
                f"| latency p50, p95, p99 in ms | {p50:.1f}, {p95:.1f}, {p99:.1f} |",
                f"| versions that answered | {len(self.versions)} |",
                f"| misbehaving clients | {dict(sorted(self.misbehaved.items()))} |",
                f"| memory in MB, second quarter and last quarter | {early:.0f}, {late:.0f} |",
            ]
        )


def resident_megabytes(pid):
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--output", type=Path, help="a Markdown file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / NAME
        convoy.export(model(1), folder, batch_sizes=[1, 8, 32])
        command = [sys.executable, "-m", "convoy", "serve", "--model", f"{NAME}={folder}"]
        command += ["--port", "0", "--grpc-port", "-1", "--max-request-bytes", "1000000"]
        command += ["--request-seconds", "10"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                url = server.stdout.readline().split()[-1].rstrip("/")
                began = time.monotonic()
                until = began + options.seconds
                soak = Soak(url, int(url.split(":")[-1]), server.pid, folder, until)
                asyncio.run(soak.run())
            finally:
                server.send_signal(signal.SIGTERM)
            status = server.wait(60)
    report = (
        f"| | |\n|---|---|\n{soak.report(time.monotonic() - began)}\n| exit status | {status} |"
    )
    print(report)
    if options.output is not None:
        options.output.write_text(f"# Load on a server\n\n`make soak-serving`\n\n{report}\n")
    return 1 if soak.wrong or soak.lost or status or set(soak.codes) - {200, 429} else 0


if __name__ == "__main__":
    sys.exit(main())
