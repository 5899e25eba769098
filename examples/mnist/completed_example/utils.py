"""Flags and data."""

from __future__ import annotations

import argparse

import keras
import numpy as np
from convoy_command.parser import Parser

CLASSES = 10
DEFAULT_ACCUMULATION = 8


def parse_arguments() -> argparse.Namespace:
    parser = Parser(description="Handwritten digits, on a CPU or on two devices.")
    parser.add_argument("--use-ipu", action="store_true", help="run on two devices")
    parser.add_argument(
        "--pipelining", action="store_true", help="run a pipeline stage on each device"
    )
    parser.add_argument(
        "--gradient-accumulation-count",
        "--gradient-accumulation-steps-per-replica",
        type=int,
        help=f"batches per weight update, with --pipelining (default: {DEFAULT_ACCUMULATION})",
    )
    parser.add_argument(
        "--batch-size", type=int, default=80, help="samples per step, over all replicas"
    )
    arguments = parser.parse_args()
    if arguments.batch_size < 1:
        parser.error(f"--batch-size {arguments.batch_size}: pass 1 or more")
    if arguments.use_ipu and not arguments.pipelining and arguments.batch_size % 2:
        parser.error(
            f"--batch-size {arguments.batch_size} does not divide over two replicas. Pass an even "
            "number"
        )
    if arguments.pipelining and not arguments.use_ipu:
        print("Note: --pipelining has no effect without --use-ipu.")
    if arguments.gradient_accumulation_count is None:
        arguments.gradient_accumulation_count = DEFAULT_ACCUMULATION
    elif not (arguments.use_ipu and arguments.pipelining):
        print("Note: gradients are accumulated with --use-ipu and --pipelining only.")
    return arguments


def load_data(multiple: int) -> tuple[tuple, tuple]:
    """Return training and test data, each trimmed to a multiple of a number of samples."""
    return tuple(_prepare(*part, multiple) for part in keras.datasets.mnist.load_data())


def _prepare(images: np.ndarray, labels: np.ndarray, multiple: int) -> tuple:
    size = len(images) - len(images) % multiple
    if size < len(images):
        left = len(images) - size
        print(
            f"WARNING: {left} of {len(images)} samples do not fill an execution and are left out."
        )
    images = np.expand_dims(images[:size].astype("float32") / 255, -1)
    return images, keras.utils.to_categorical(labels[:size], CLASSES)
