"""Write volumes of Gaussian random fields, in the record files of CosmoFlow's data set.

    python data_gen/make_fields.py --output data/fields

Their power spectrum follows from four targets, so that there is something to learn. The default
makes 6,656 volumes of 16x16x16x4, which configs/fields.yaml trains on, in about a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from convoy.data import records

# The folder of the example's package: Python adds only the script's own.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cosmoflow import volume_files
from cosmoflow.gaussian_fields import NAMES, SIDE, make_volume


def main() -> None:
    options = parse_options()
    for split, (name, samples) in enumerate(
        (("train", options.n_train), ("validation", options.n_valid))
    ):
        folder = Path(options.output) / name
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SystemExit(f"{folder} is not empty. Pass another --output.")
        per_file = options.samples_per_file
        for number in range(samples // per_file):
            path = folder / f"fields_{number:06}.tfrecord{'' if options.plain else '.gz'}"
            samples_of_file = range(number * per_file, (number + 1) * per_file)
            data = encoded(options.size, (options.seed, split), samples_of_file, options.side)
            records.write_file(path, data, compressed=not options.plain)
        print(f"{folder}: {samples} volumes")


def encoded(size: int, seed: tuple[int, int], numbers: range, side: float) -> Iterator[bytes]:
    """Return samples, each of which follows from the seed and its number."""
    for number in numbers:
        rng = np.random.default_rng((*seed, number))
        targets = rng.uniform(-1, 1, len(NAMES))
        yield volume_files.encode(make_volume(size, targets, rng, side=side), targets.tolist())


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="folder of train and validation")
    parser.add_argument("--n-train", type=int, default=6144, help="samples to train on (6144)")
    parser.add_argument("--n-valid", type=int, default=512, help="samples to validate on (512)")
    parser.add_argument("--size", type=int, default=16, help="voxels along each side (16)")
    parser.add_argument(
        "--side", type=float, default=SIDE, help=f"length of a side, in Mpc/h ({SIDE:g})"
    )
    parser.add_argument("--samples-per-file", type=int, default=1, help="records of a file (1)")
    parser.add_argument("--plain", action="store_true", help="do not compress files")
    parser.add_argument("--seed", type=int, default=0, help="of all that chance decides (0)")
    options = parser.parse_args()
    for split in ("n_train", "n_valid"):
        if getattr(options, split) % options.samples_per_file:
            parser.error(
                f"--{split.replace('_', '-')} {getattr(options, split)} does not fill files of "
                f"{options.samples_per_file} samples."
            )
    return options


if __name__ == "__main__":
    main()
