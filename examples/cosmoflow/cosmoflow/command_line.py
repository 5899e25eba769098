"""The flags, which override what the YAML file says."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convoy.flags import boolean
from convoy_command.parser import Parser

# Which value of the file a flag overrides.
_OVERRIDES: dict[str, tuple[str, Any, str]] = {
    "output-dir": ("output_dir", str, "folder of the run's files"),
    "data-dir": ("data.data_dir", str, "where the folders train and validation are"),
    "n-train": ("data.n_train", int, "samples to train on"),
    "n-valid": ("data.n_valid", int, "samples to validate on"),
    "micro-batch-size": ("data.micro_batch_size", int, "samples that a replica takes at a time"),
    "n-epochs": ("data.n_epochs", int, "passes through the data"),
    "apply-log": ("data.apply_log", boolean, "1: log(x + 1); 0: x over its mean"),
    "subtract-mean": ("data.subtract_mean", boolean, "1: then take a volume's mean from it"),
    "staged-files": ("data.staged_files", boolean, "1: copy files to a disk of this host first"),
    "stage-dir": ("data.stage_dir", str, "where to"),
    "prefetch": ("data.prefetch", int, "batches that are made ahead"),
    "workers": ("data.workers", int, "processes that make them"),
    "iterations-per-loop": ("ipu_config.iterations_per_loop", int, "steps in one device call"),
    "num-ipus": ("ipu_config.num_ipus", int, "replicas"),
    "gradient-accumulation": (
        "ipu_config.gradient_accumulation",
        int,
        "micro-batches per weight update and replica",
    ),
    "stages": ("ipu_config.stages", int, "stages of a pipeline, each on a device of its own"),
    "pipeline-schedule": ("ipu_config.pipeline_schedule", str, "of the stages"),
    "recompute": ("ipu_config.recompute", boolean, "1: stages compute activations again"),
    "precision": ("ipu_config.precision", str, "32.32, 16.32, 16.16, bf16.32 or bf16.16"),
    "model": ("model.name", str, "the network"),
    "conv-size": ("model.conv_size", int, "channels of the first layer"),
    "fc1-size": ("model.fc1_size", int, "units of the first dense layer"),
    "fc2-size": ("model.fc2_size", int, "units of the second dense layer"),
    "hidden-activation": ("model.hidden_activation", str, "such as LeakyReLU"),
    "dropout": ("model.dropout", float, "share that dropout leaves out"),
    "optimizer": ("optimizer.name", str, "such as Adadelta"),
    "lr": ("optimizer.lr", float, "learning rate, before it is scaled"),
}


class CommandLine(NamedTuple):
    """What the command line says.

    Attributes:
        config: the YAML file.
        overrides: values by section and name.
        use_estimator: whether an estimator trains.
        data_benchmark: whether only the input is measured.
        print_fom: whether the best validation loss is printed at the end.
        verbose: whether everything is logged.
        notes: what the user should know, a line each.
    """

    config: Path
    overrides: dict[str, Any]
    use_estimator: bool
    data_benchmark: bool
    print_fom: bool
    verbose: bool
    notes: tuple[str, ...]


def make_parser(program: str, folder: Path) -> Parser:
    parser = Parser(prog=program, description="Train a network on volumes.")
    parser.add_argument(
        "config",
        nargs="?",
        default=folder / "configs" / "cosmo.yaml",
        type=Path,
        help="YAML file of settings (default: configs/cosmo.yaml)",
    )
    for name, (where, read, said) in _OVERRIDES.items():
        parser.add_argument(
            f"--{name}",
            dest=where,
            type=read,
            default=argparse.SUPPRESS,
            metavar=name.rsplit("-", 1)[-1].upper(),
            help=said,
        )
    add = parser.add_argument
    path = parser.add_mutually_exclusive_group()
    path.add_argument("--use-estimator", action="store_true", help="train by an estimator")
    path.add_argument(
        "--data-benchmark",
        action="store_true",
        help="measure the input, and how much training waits for it",
    )
    add("--print-fom", action="store_true", help="print the best validation loss at the end")
    add("-v", "--verbose", action="store_true", help="log everything")
    add("-d", "--distributed", action="store_true", help="no effect: see convoy launch")
    return parser


def parse(words: Sequence[str], program: str, folder: Path) -> CommandLine:
    """Read a command line; ends the program if it cannot be understood."""
    given = vars(make_parser(program, folder).parse_args(words))
    plain = {name: given.pop(name) for name in ("config", "use_estimator", "data_benchmark")}
    plain |= {name: given.pop(name) for name in ("print_fom", "verbose")}
    notes: tuple[str, ...] = ()
    if given.pop("distributed"):
        notes = ("--distributed has no effect: `convoy launch` makes one run of many processes.",)
    return CommandLine(overrides=given, notes=notes, **plain)


def overridden(tree: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return what a file says, with other values for some of it."""
    changed = dict(tree)
    for where, value in overrides.items():
        section, _, name = where.rpartition(".")
        if not section:
            changed[name] = value
        else:
            changed[section] = dict(changed.get(section) or {}) | {name: value}
    return changed
