"""Command line of `train.py`: flags that override the YAML file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convoy.configuration import add_flags
from convoy_command.parser import Parser

from cosmoflow.settings import Settings

# Flags for names and for arguments of the networks, which no schema lists.
_NAMED = {
    "model": ("model.name", str, "name of the network"),
    "optimizer": ("optimizer.name", str, "Keras's name of the optimizer, such as Adadelta"),
    "conv-size": ("model.conv_size", int, "channels of the first layer"),
    "fc1-size": ("model.fc1_size", int, "units of the first dense layer"),
    "fc2-size": ("model.fc2_size", int, "units of the second dense layer"),
    "hidden-activation": ("model.hidden_activation", str, "activation, such as LeakyReLU"),
    "dropout": ("model.dropout", float, "dropout rate"),
}


class CommandLine(NamedTuple):
    """A parsed command line.

    Attributes:
        config: path of the YAML file.
        overrides: values of flags, by section and name, such as `data.n_train`.
        use_estimator: whether to train with an estimator.
        resume: whether to continue the interrupted run of an estimator.
        data_benchmark: whether to measure the input instead of training.
        print_fom: whether to print the best validation loss at the end.
        verbose: whether to log at DEBUG level.
        distributed: whether the flag without effect was given.
    """

    config: Path
    overrides: dict[str, Any]
    use_estimator: bool
    resume: bool
    data_benchmark: bool
    print_fom: bool
    verbose: bool
    distributed: bool


def make_parser(program: str, folder: Path) -> Parser:
    parser = Parser(prog=program, description="Train a network on volumes.")
    add = parser.add_argument
    add(
        "config",
        nargs="?",
        default=folder / "configs" / "cosmo.yaml",
        type=Path,
        help="YAML file of settings (default: configs/cosmo.yaml)",
    )
    path = parser.add_mutually_exclusive_group()
    path.add_argument("--use-estimator", action="store_true", help="train with an estimator")
    path.add_argument(
        "--data-benchmark",
        action="store_true",
        help="measure the input, and the time that training waits for it",
    )
    add(
        "--resume",
        action="store_true",
        help="continue an interrupted run with --use-estimator, instead of adding a run to it",
    )
    add("--print-fom", action="store_true", help="print the best validation loss at the end")
    add("-v", "--verbose", action="store_true", help="log at DEBUG level")
    add("-d", "--distributed", action="store_true", help="no effect: see convoy launch")
    add_flags(parser, Settings)
    for name, (path_of_value, kind, description) in _NAMED.items():
        add(
            f"--{name}",
            dest=path_of_value,
            type=kind,
            default=argparse.SUPPRESS,
            metavar=name.rsplit("-", 1)[-1].upper(),
            help=description,
        )
    return parser


def parse(words: Sequence[str], program: str, folder: Path) -> CommandLine:
    """Parse a command line; ends the program if it is invalid."""
    values = vars(make_parser(program, folder).parse_args(words))
    own = {name: values.pop(name) for name in CommandLine._fields if name in values}
    return CommandLine(overrides=values, **own)
