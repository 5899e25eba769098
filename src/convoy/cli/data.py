"""`convoy data`: verifies datasets, builds ImageNet record files and measures the input."""

import sys
from collections.abc import Sequence

from convoy.cli import train
from convoy.configuration import Configuration, add_flags, read
from convoy.cpu import threads
from convoy.data.build_imagenet import BuildOptions, build_imagenet
from convoy.data.verify import VerifyOptions, verify
from convoy.train.input_benchmark import measure_input
from convoy_command.parser import Parser, failed

PROGRAM = "convoy data"
SUMMARIES = {
    "verify": "Compare the numbers of images and classes of a dataset with the expected ones.",
    "build-imagenet": "Build record files from folders of ImageNet's images.",
    "bench": "Measure the images per second that the host prepares, with flags of convoy train.",
}


SCHEMAS: dict[str, type[Configuration]] = {"verify": VerifyOptions, "build-imagenet": BuildOptions}


def make_parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Verify, build and measure datasets.")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in SUMMARIES.items():
        subparser = actions.add_parser(name, help=summary, description=summary)
        if name in SCHEMAS:
            add_flags(subparser, SCHEMAS[name])
        else:
            train.add_training_flags(subparser)
    return parser


def main(words: Sequence[str]) -> int:
    """Verify, build and measure datasets."""
    if not words:
        make_parser().print_help(sys.stderr)
        return 2
    flags = vars(make_parser().parse_args(words))
    action = flags.pop("action")
    try:
        if action == "bench":
            return _bench(train.read_options(flags))
        if action == "verify":
            return 0 if verify(read(VerifyOptions, flags, flags=True)) else 1
        build_imagenet(read(BuildOptions, flags, flags=True))
    except ValueError as error:
        return failed(f"{PROGRAM} {action}", error, 2)
    return 0


def _bench(options: train.Options) -> int:
    measured = measure_input(options)
    if measured is None:
        print("These images are moved to the device once, so the host prepares none in training.")
        return 0
    images, seconds = measured
    cores = threads.cores()
    print(f"Throughput = {images / seconds:.1f} examples/sec")
    print(f"{images} images in {seconds:.1f} s; {images / seconds / cores:.1f} per core ({cores})")
    return 0
