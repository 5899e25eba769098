"""Hours of generated input: requests to a server, images, exported versions and checkpoints.

    python -m tests.fuzz.run [--seconds 3600] [--seed 0] [--output FILE]

It should report: no fault, no good request lost or wrong, and memory flat within 5 %. The exit
status is 1 otherwise. All generators follow from the seed. Everything runs on this machine, over
the loopback address, and ends with the time.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

import convoy
import keras
import numpy as np
from tests.serving.models import CLASSES, classifier, half_plus
from tests.serving.processes import serving

from .files import ArtifactFuzz, CheckpointFuzz
from .images import ImageFuzz
from .jpegs import JpegFuzz
from .server import ServerFuzz

MAX_GROWTH = 1.05


def export(folder):
    """Export the two models that are attacked; return their folders by name."""
    keras.utils.set_random_seed(0)
    convoy.export(half_plus(2), folder / "half", batch_sizes=[1, 4])
    scale = keras.layers.Rescaling(1 / 255)
    settings = {"class_names": CLASSES, "preprocessing": scale}
    convoy.export(classifier(), folder / "pictures", batch_sizes=[1, 4], **settings)
    return {"half": folder / "half", "pictures": folder / "pictures"}


def train(folder):
    """Write the checkpoint of a short run, and return its folder."""
    with convoy.Strategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("adam", "mse")
    x = np.ones((4, 3), "float32")
    model.fit(x, x[:, :2], verbose=0, callbacks=[convoy.Checkpoints(folder)])
    return next(path for path in folder.iterdir() if path.is_dir())


class Files:
    """Fuzzers of files, which run one after the other."""

    def __init__(self, folder, models, seed):
        work = folder / "work"
        work.mkdir()
        self.fuzzers = {
            "checkpoints": CheckpointFuzz(train(folder / "run"), work, seed),
            "exported versions": ArtifactFuzz(models["pictures"] / "1", work, seed),
            "images of requests": ImageFuzz(seed),
            "JPEG decoder": JpegFuzz(seed),
        }

    def run(self, goes_on):
        while goes_on():
            for fuzzer in self.fuzzers.values():
                for _ in range(10):
                    fuzzer.run_one()


def growth(memory):
    """Return the memory of the second and of the last quarter of a run, in megabytes."""
    values = [value for _, value in memory]
    quarter = max(1, len(values) // 4)
    return float(np.median(values[quarter : 2 * quarter])), float(np.median(values[-quarter:]))


def report(server, files, seconds, status):
    early, late = growth(server.memory)
    faults = server.faults + [f for fuzzer in files.fuzzers.values() for f in fuzzer.faults]
    rows = [("seconds", f"{seconds:.0f}"), ("seed", server.seed)]
    rows += [(f"{kind}: {c.total()}", show(c)) for kind, c in server.answers.items()]
    rows += [(f"{n}: {f.outcomes.total()}", show(f.outcomes)) for n, f in files.fuzzers.items()]
    rows += [
        ("bad requests in all", server.bad_requests),
        ("answers with an error of the server (5xx)", server.server_errors),
        ("refusals that are not JSON", server.not_json),
        ("good requests", show(server.good)),
        ("memory of the server in MB, second and last quarter", f"{early:.0f}, {late:.0f}"),
        ("highest memory of the server in MB", f"{max(value for _, value in server.memory):.0f}"),
        ("faults", len(faults)),
        ("exit status of the server", status),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"| | |\n|---|---|\n{table}", faults, late <= MAX_GROWTH * early


def show(counter):
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items(), key=str))


async def attack(server, files, until):
    await asyncio.gather(
        server.run(), asyncio.to_thread(files.run, lambda: time.monotonic() < until)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a Markdown file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = export(folder)
        files = Files(folder, models, options.seed)
        rolled = folder / "rolled"
        shutil.copytree(models["half"], rolled)
        versions = ArtifactFuzz(models["half"] / "1", folder, f"{options.seed}/versions")
        with serving(folder, **models, rolled=rolled) as process:
            began = time.monotonic()
            until = began + options.seconds
            server = ServerFuzz(
                process, options.seed, lambda _: time.monotonic() < until, versions, rolled
            )
            asyncio.run(attack(server, files, until))
            seconds = time.monotonic() - began
            status = process.process.poll()
            status = process.stop() if status is None else status
            log_lines = len(process.log.read_text().splitlines())
    table, faults, is_flat = report(server, files, seconds, status)
    table += f"\n| lines in the server's log | {log_lines} |"
    print(table)
    for fault in faults[:20]:
        print(f"fault: {fault[:1000]}")
    if options.output is not None:
        options.output.write_text(f"# Generated input\n\n`make fuzz`\n\n{table}\n")
    return 1 if faults or status or not is_flat else 0


if __name__ == "__main__":
    sys.exit(main())
