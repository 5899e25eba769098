"""Images per CPU-second of input pipelines: Convoy, `tf.data` and torch's `DataLoader`.

All read the same JPEGs, of the sizes of ImageNet's, and do the same work: read, decode, random
resized crop to 224 x 224, random flip, batches of 64 as bytes. They take turns in one run. A
CPU-second counts only the time in which a thread or process of the pipeline runs, so other programs
on the machine do not change the result. Expected: Convoy is not slower than either. Five minutes on
two cores:

    .venv/bin/python -m benchmarks.input_pipeline
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
from benchmarks.input_runner import PIPELINES
from benchmarks.peers import environments, machine
from convoy_command import cli

ENVIRONMENTS = {"tf.data": "tensorflow", "torch": "torch"}
# Height and width, as in ImageNet: most are 375 x 500, some are small, a few are large.
SIZES = [(375, 500)] * 6 + [(500, 375)] * 3 + [(333, 500)] * 2 + [(240, 320)] + [(768, 1024)]
QUALITY = 92


def make_image(rng: np.random.Generator, height: int, width: int) -> bytes:
    """Return noise of all scales, as photographs have: about as hard to decode as one."""
    image = np.zeros((height, width, 3), np.float32)
    for cell in (2, 4, 8, 16, 32, 64, 128):
        noise = rng.normal(size=(height // cell + 2, width // cell + 2, 3)).astype(np.float32)
        image += cell**0.6 * cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    image = 128 + 40 * image / image.std()
    pixels = image.clip(0, 255).astype(np.uint8)
    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def make_data(root: Path, count: int) -> str:
    """Write the images as folders and as shards; returns a line about them."""
    rng = np.random.default_rng(0)
    sizes = []
    for number in range(count):
        folder = root / "folder" / "train" / f"n{number % 8:02}"
        folder.mkdir(parents=True, exist_ok=True)
        data = make_image(rng, *SIZES[number % len(SIZES)])
        (folder / f"{number:05}.JPEG").write_bytes(data)
        sizes.append(len(data))
    words = ["--source", root / "folder", "--output", root / "shards", "--train-shards", 8]
    assert cli.main(["data", "build-imagenet", *map(str, words)]) == 0
    return f"{count} images, {statistics.mean(sizes) / 1024:.0f} KiB each on average"


class Runner:
    """The process of one peer; it is stopped by a signal while others are measured."""

    def __init__(self, name: str, root: Path, cores: int, log: Path) -> None:
        self.name = name
        python = environments.python(ENVIRONMENTS.get(name, environments.OURS))
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [str(python), "-m", "benchmarks.input_runner", name, str(root), str(cores)],
                cwd=environments.ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        answer = self.process.stdout.readline()
        if answer != "ready\n":
            raise RuntimeError(f"{name} does not run: see {log}")
        self._signal(signal.SIGSTOP)

    def measure(self, seconds: float) -> float:
        """Return the images that were made in a second of a core."""
        self._signal(signal.SIGCONT)
        before, began = self._processor_seconds(), time.perf_counter()
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        rate = float(self.process.stdout.readline())
        elapsed = time.perf_counter() - began
        used = self._processor_seconds() - before
        self._signal(signal.SIGSTOP)
        return rate * elapsed / used

    def _processor_seconds(self) -> float:
        """Return the time that all its processes and threads have had a core so far."""
        total = 0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self.process.pid:  # the group that it began
                total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.communicate()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)


def measure(names: list[str], root: Path, cores: int, rounds: int, seconds: float):
    """Return images per second and core of each peer, a figure for each round."""
    found: dict[str, list[float]] = {name: [] for name in names}
    runners = []
    try:
        for name in names:
            runners.append(Runner(name, root, cores, root / f"{name}.log"))
        for number in range(rounds):
            for runner in runners[number % len(runners) :] + runners[: number % len(runners)]:
                found[runner.name].append(runner.measure(seconds))
    finally:
        for runner in runners:
            runner.end()
    return found


def page(found: dict[int, dict[str, list[float]]], about: str) -> list[str]:
    lines = [
        "# Input pipelines",
        "",
        f"`python -m benchmarks.input_pipeline`, {time.strftime('%Y-%m-%d')}, commit "
        f"{machine.commit()}, {machine.describe()['CPU']}. {about}. Images per second and core, "
        "median of the rounds (smallest to largest); and Convoy's over the peer's, round by round.",
        "",
        "| pipeline | cores | images per second and core | speedup of Convoy |",
        "|---|---|---|---|",
    ]
    for cores, rates in found.items():
        for name, values in rates.items():
            ratios = [ours / theirs for ours, theirs in zip(rates["convoy"], values, strict=True)]
            lines.append(
                f"| {name} | {cores} | {statistics.median(values):.0f} ({min(values):.0f} to "
                f"{max(values):.0f}) | {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
                f"{max(ratios):.2f}) |"
            )
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    parser.add_argument("--images", type=int, default=1040)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cores", type=int, nargs="+")
    parser.add_argument("--output", type=Path, help="a page to write")
    options = parser.parse_args()
    for name in dict.fromkeys(ENVIRONMENTS[peer] for peer in options.peers if peer in ENVIRONMENTS):
        problem = environments.build(name)
        if problem:
            raise SystemExit(f"{name}: {problem}")
    everything = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        about = make_data(root, options.images)
        found = {
            cores: measure(options.peers, root, cores, options.rounds, options.seconds)
            for cores in options.cores or dict.fromkeys((1, everything))
        }
    lines = page(found, about)
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
