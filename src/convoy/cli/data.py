"""`convoy data`: verifies datasets, builds ImageNet record files and measures the input."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from convoy.cli import train
from convoy.data import build_imagenet, verify
from convoy.train.input_benchmark import measure_input
from convoy_command.parser import Parser, stop

BENCH = "convoy data bench"


class Action(NamedTuple):
    """An action of `convoy data`: its parser and its function."""

    make_parser: Callable[[], Parser]
    main: Callable[[Sequence[str]], int]


def make_parser() -> Parser:
    parser = Parser(prog="convoy data", description="Verify, build and measure datasets.")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in ACTIONS.items():
        actions.add_parser(name, help=(action.main.__doc__ or "").splitlines()[0])
        actions.choices[name] = action.make_parser()
    return parser


def main(words: Sequence[str]) -> int:
    """Verify, build and measure datasets."""
    if words and words[0] in ACTIONS:
        return ACTIONS[words[0]].main(words[1:])
    if not words:
        make_parser().print_help(sys.stderr)
        return 2
    make_parser().parse_args(words)
    return 0


def bench(words: Sequence[str]) -> int:
    """Measure how many images per second the host prepares with the flags of `convoy train`."""
    try:
        measured = measure_input(train.parse(words, BENCH))
    except ValueError as error:
        stop(str(error), BENCH)
    if measured is None:
        print("These images are moved to the device once, and need nothing of the host.")
        return 0
    images, seconds = measured
    cores = len(os.sched_getaffinity(0))
    print(f"Throughput = {images / seconds:.1f} examples/sec")
    print(f"{images} images in {seconds:.1f} s; {images / seconds / cores:.1f} per core ({cores})")
    return 0


ACTIONS = {
    "verify": Action(verify.make_parser, verify.main),
    "build-imagenet": Action(build_imagenet.make_parser, build_imagenet.main),
    "bench": Action(lambda: train.make_parser(BENCH), bench),
}
