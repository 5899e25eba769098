"""`convoy data verify`: whether a data set is there, and whole."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from convoy.data.catalog import DATASETS, load


def main(words: Sequence[str]) -> int:
    """Read a data set, count it, and compare with what it should have."""
    parser = argparse.ArgumentParser(prog="convoy data", description=main.__doc__)
    parser.add_argument("action", choices=("verify",))
    parser.add_argument("--dataset", choices=tuple(DATASETS), required=True)
    parser.add_argument("--dataset-path", default=".", help="its folder (default: .)")
    options = parser.parse_args(words)
    try:
        data = load(options.dataset, options.dataset_path)
    except ValueError as error:
        print(f"convoy data: error: {error}", file=sys.stderr)
        return 2
    whole = True
    for part, (images, labels) in (("train", data.train), ("test", data.test)):
        expected, classes = data.info.size(part), len(np.unique(labels))
        whole &= len(images) == expected and classes == data.info.classes
        print(
            f"{part:<6} {len(images):>7} images of {expected}, "
            f"{classes} classes of {data.info.classes}"
        )
    print(f"{options.dataset} is {'whole' if whole else 'not whole'}")
    return 0 if whole else 1
