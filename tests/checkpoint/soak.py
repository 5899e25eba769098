"""Kills 100 runs at random moments and compares each with one that nobody killed: `make soak`.

Expected: every line says "same bits". Takes about ten minutes on two cores.
"""

import argparse
import collections
import platform
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import numpy as np

# A script in a folder of tests: its neighbours are imported by name.
sys.path.insert(0, str(Path(__file__).parent))
from kill import Victims, kill_until_done

VARIANTS = (
    "plain",
    "streamed",
    "workers",
    "replicated",
    "sharded",
    "accumulated",
    "pipelined",
    "half",
    "augmented",
    "application",
)
KILLS_PER_RUN = 4


def soak(victims, variant, folder, rng, kills):
    """Kill runs of one variant until there are enough kills; return what they were killed at."""
    expected = victims.run(variant, folder / "whole")
    assert expected.status == 0, f"{variant} does not run by itself"
    killed = []
    runs = 0
    while len(killed) < kills:
        left = min(KILLS_PER_RUN, kills - len(killed))
        ended, at = kill_until_done(victims, variant, folder / str(runs), rng, left)
        killed += at
        runs += 1
        if ended.outcome != expected.outcome:
            raise SystemExit(f"{variant}: NOT the same after kills at {at}: {ended}, {expected}")
    return killed, runs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--output", type=Path, help="a page to write")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    start = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        victims = Victims(folder / "programs")
        shares = np.array_split(np.arange(options.kills), len(options.variants))
        for variant, share in zip(options.variants, shares, strict=True):
            killed, runs = soak(victims, variant, folder / variant, rng, len(share))
            at = collections.Counter(killed)
            where = ", ".join(f"{count} at {kind}" for kind, count in sorted(at.items()))
            rows.append(f"| {variant} | {runs} | {len(killed)} | {where} | same bits |")
            print(rows[-1], flush=True)
        victims.close()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "keras", "numpy"))
    page = [
        "# Killed runs",
        "",
        f"`make soak`, {time.strftime('%Y-%m-%d')}, seed {options.seed}: {options.kills} kills by",
        "SIGKILL at random moments. After its kills a run is let be, and compared with one that",
        "nobody killed: history of all metrics (on one device a number that tells the order of the",
        "data is among them), weights, statistics, optimizer, loss scale, random states, and the",
        "hash of the last checkpoint, which covers all of its state. A kill comes right after",
        "a device call (`call`), a validation step, or in the middle of a save: before a file is",
        "brought to the disk (`sync`) or the checkpoint gets its name (`rename`).",
        "",
        "| run | runs | kills | where | outcome |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"{time.perf_counter() - start:.0f} s on {platform.machine()}, {versions}.",
        "",
    ]
    if options.output:
        options.output.write_text("\n".join(page))


if __name__ == "__main__":
    main()
