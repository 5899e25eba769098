"""Write volumes of Gaussian random fields to record files in the format of the CosmoFlow dataset.

    python data_gen/make_fields.py --output data/fields

Four targets determine the power spectrum, which a network can learn. By default, it writes the
6,656 volumes of 16x16x16x4 for configs/fields.yaml, in about a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from convoy.data import records
from convoy_command.parser import Parser

# The package `cosmoflow` is in the parent folder, which Python does not search by itself.
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
    """Yield encoded samples; each depends only on the seed and its number."""
    for number in numbers:
        rng = np.random.default_rng((*seed, number))
        targets = rng.uniform(-1, 1, len(NAMES))
        yield volume_files.encode(make_volume(size, targets, rng, side=side), targets.tolist())


def parse_options() -> argparse.Namespace:
    parser = Parser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--output", required=True, help="folder of the folders train and validation")
    add("--n-train", type=int, default=6144, help="number of training samples (6144)")
    add("--n-valid", type=int, default=512, help="number of validation samples (512)")
    add("--size", type=int, default=16, help="voxels along each side (16)")
    add("--side", type=float, default=SIDE, help=f"side length in Mpc/h ({SIDE:g})")
    add("--samples-per-file", type=int, default=1, help="number of records in a file (1)")
    add("--plain", action="store_true", help="do not compress the files")
    add("--seed", type=int, default=0, help="random seed (0)")
    options = parser.parse_args()
    for split in ("n_train", "n_valid"):
        if getattr(options, split) % options.samples_per_file:
            parser.error(
                f"--{split.replace('_', '-')} {getattr(options, split)} does not fill files of "
                f"{options.samples_per_file} samples. Pass a multiple."
            )
    return options


if __name__ == "__main__":
    main()
