"""Latency of ResNet-50 over HTTP: Convoy's server, ONNX Runtime and PyTorch.

    .venv/bin/python -m benchmarks.serving [--rounds 8] [--requests 96]

The peers run in the environments of `benchmarks.peers`, which the first run creates. Each is a
process with an aiohttp server that receives image bytes and batches the requests that arrive while
the model runs. Clients send one image per request. Servers take turns within each round. A ratio
compares servers within one round; percentiles, in milliseconds, are over all requests, so a single
slow second of the machine can change a percentile, but not the median of the ratios. Expected:
Convoy's p99 latency is not higher than that of the others, with and without batching. 12 minutes on
two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import convoy
import keras
import numpy as np
from benchmarks.peers.environments import CACHE, FOLDER, build, python

SHAPE = (224, 224, 3)
SIZES = [1, 2, 4, 8]
# The number of clients, and whether the server may join their images.
CASES = {
    "1 client": (1, False),
    "8 clients, no batching": (8, False),
    "8 clients, batching": (8, True),
}
PEERS = ("onnxruntime", "torch")
PEER = Path(__file__).with_name("serving_peer.py")


def prepare_convoy(folder: Path) -> list[str]:
    keras.utils.set_random_seed(0)
    image = keras.Input(SHAPE, name="image")
    model = keras.applications.ResNet50(weights=None, input_tensor=image)
    convoy.export(model, folder, batch_sizes=SIZES, preprocessing=keras.layers.Rescaling(1 / 255))
    words = [sys.executable, "-m", "convoy", "serve", "--model", f"resnet={folder}"]
    return [*words, "--port", "0", "--grpc-port", "-1"]


def prepare_peer(name: str) -> list[str]:
    for environment in {name, "torch"}:
        if why := build(environment):
            raise SystemExit(f"{environment}: {why}")
    pip = [str(python(name)), "-m", "pip", "install", "--quiet", "aiohttp", "numpy"]
    subprocess.run(pip, check=True)
    file = CACHE / "serving-resnet50.onnx"
    if name == "onnxruntime" and not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [python("torch"), str(PEER), "write", str(file)], check=True, cwd=FOLDER.parent
        )
    return [str(python(name)), str(PEER), name, str(file)]


class Server:
    """A server in a process of its own, until the block ends."""

    def __init__(self, words: list[str], batching: bool) -> None:
        is_convoy = "convoy" in words
        limit = ["--max-batch-size", "1" if not batching else str(max(SIZES))]
        self.words = [*words, *limit]
        self.path = "/v2/models/resnet/infer" if is_convoy else "/infer"

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = self.process.stdout.readline().split()
        if not address:
            raise SystemExit(f"{self.words} did not start")
        self.url = address[-1].rstrip("/") + self.path
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def body_of(image: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """Return a request of the Open Inference Protocol; peers read the bytes after its header."""
    entry = {
        "name": "image",
        "shape": list(image.shape),
        "datatype": "UINT8",
        "parameters": {"binary_data_size": image.nbytes},
    }
    request = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    header = json.dumps(request).encode()
    return header + image.tobytes(), {"Inference-Header-Content-Length": str(len(header))}


@dataclass(frozen=True)
class Turn:
    """What one server did in one round: images per second, and the seconds of each request."""

    speed: float
    seconds: list[float]

    @property
    def p99(self) -> float:
        return float(np.percentile(self.seconds, 99))


def with_spread(ratios: np.ndarray) -> str:
    return f"{np.median(ratios):.2f} [{min(ratios):.2f} to {max(ratios):.2f}]"


async def load(url: str, clients: int, requests: int) -> Turn:
    image = np.random.default_rng(0).integers(0, 256, (1, *SHAPE)).astype(np.uint8)
    body, headers = body_of(image)
    seconds: list[float] = []

    async def client(session: aiohttp.ClientSession, count: int) -> None:
        for _ in range(count):
            began = time.perf_counter()
            async with session.post(url, data=body, headers=headers) as answer:
                text = await answer.read()
                if answer.status != 200:
                    raise SystemExit(f"{url} answered {answer.status}: {text!r}")
            seconds.append(time.perf_counter() - began)

    async with aiohttp.ClientSession() as session:
        await client(session, 2)
        seconds.clear()
        began = time.perf_counter()
        await asyncio.gather(*(client(session, requests // clients) for _ in range(clients)))
        return Turn(len(seconds) / (time.perf_counter() - began), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--requests", type=int, default=96, help="of each server in a round")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    options = parser.parse_args()
    turns: dict[tuple[str, str], list[Turn]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        words = {"convoy": prepare_convoy(Path(folder) / "resnet")}
        words |= {name: prepare_peer(name) for name in options.peers}
        # All are up from the beginning; those that wait take no time.
        servers = {
            (name, batching): stack.enter_context(Server(words[name], batching))
            for name in words
            for batching in {CASES[case][1] for case in options.cases}
        }
        for _ in range(options.rounds):
            for case in options.cases:
                clients, batching = CASES[case]
                for name in words:
                    url = servers[name, batching].url
                    turns[case, name].append(asyncio.run(load(url, clients, options.requests)))
    print("| | server | images/s | p50 ms | p99 ms | Convoy's images/s over | Convoy's p99 over |")
    print("|---|---|---|---|---|---|---|")
    for (case, name), own in turns.items():
        p50, p99 = 1000 * np.percentile([s for turn in own for s in turn.seconds], (50, 99))
        convoys = turns[case, "convoy"]
        speeds = np.divide([turn.speed for turn in convoys], [turn.speed for turn in own])
        tails = np.divide([turn.p99 for turn in convoys], [turn.p99 for turn in own])
        print(
            f"| {case} | {name} | {np.median([turn.speed for turn in own]):.1f} | {p50:.0f} | "
            f"{p99:.0f} | {with_spread(speeds)} | {with_spread(tails)} |"
        )


if __name__ == "__main__":
    main()
