"""From a command line to a trained network."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import yaml
from convoy import distributed
from convoy.checkpoint import CheckpointError
from convoy.progress_bar import Output
from convoy_command.parser import INTERRUPTED

from cosmoflow import data_benchmark, estimator_training, training
from cosmoflow.command_line import CommandLine, overridden, parse
from cosmoflow.input import Input, open_input, open_splits
from cosmoflow.network import Networks, check_settings, make_model, make_strategy
from cosmoflow.progress import Report
from cosmoflow.run_folder import RunFolder
from cosmoflow.run_plan import Plan, make_plan
from cosmoflow.sections import read_yaml
from cosmoflow.settings import Settings


def main(
    networks: Networks,
    folder: Path,
    words: Sequence[str] | None = None,
    program: str = "train.py",
) -> int:
    """Train a network on volumes.

    Args:
        networks: functions that make a network, by name.
        folder: where the folder `configs` is.
        words: the command line; by default that of this process.
        program: what it is called in messages.

    Returns:
        The exit status.
    """
    line = parse(sys.argv[1:] if words is None else words, program, folder)
    level = logging.DEBUG if line.verbose else logging.WARNING
    logging.basicConfig(format="%(levelname)s:%(name)s:%(message)s")
    logging.getLogger("convoy").setLevel(level)
    try:
        with _one_voice() as output:
            return _run(networks, line, output)
    except (ValueError, CheckpointError) as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def _one_voice() -> Iterator[Output]:
    """Have the first process speak alone."""
    if distributed.is_first():
        yield Output()
        return
    with open(os.devnull, "w") as nowhere:
        yield Output(nowhere)


def _run(networks: Networks, line: CommandLine, output: Output) -> int:
    tree = overridden(read_yaml(line.config), line.overrides)
    try:
        settings = Settings.of(tree)
        check_settings(networks, settings, by_estimator=line.use_estimator)
        plan = make_plan(settings)
    except ValueError as error:
        raise ValueError(f"{line.config}: {error}") from None
    for note in (*line.notes, *_notes(plan)):
        output.line(note)
    keras.utils.set_random_seed(settings.train.seed)
    splits = open_splits(settings.data, settings.train.seed)
    # A CPU is divided into devices before anything is computed on it.
    strategy = make_strategy(plan)
    with open_input(plan, splits) as data:
        model = None if line.use_estimator else make_model(networks, plan, strategy)
        folder = RunFolder(settings.output_dir, tree)
        output.line(yaml.safe_dump(tree, sort_keys=False, default_flow_style=None).rstrip())
        if line.data_benchmark:
            assert model is not None
            data_benchmark.measure_input(data, output)
            data_benchmark.measure_waiting(model, data, output)
            return 0
        report = Report(plan, folder, output)
        if model is not None:
            said = _fit(model, data, report)
        else:
            with estimator_training.checkpoint_folder(folder.path) as path:
                estimator = estimator_training.make_estimator(networks, plan, strategy, path)
                said = estimator_training.train(estimator, data, report)
            folder.write_lines("estimator_throughput.txt", report.throughput.table)
    _summarise(report, said, line)
    return 0


def _fit(model: keras.Model, data: Input, report: Report) -> list[str]:
    training.train(model, data, report)
    return training.show_predictions(model, data, report.folder)


def _notes(plan: Plan) -> list[str]:
    asked, replicas = plan.settings.devices.num_ipus, plan.batch.replicas
    if asked == replicas:
        return []
    return [f"num_ipus {asked} is overridden by the {replicas} replicas that were launched."]


def _summarise(report: Report, said: list[str], line: CommandLine) -> None:
    output, folder = report.output, report.folder
    if report.throughput.warm_up is None:  # nothing was left to train
        for text in said:
            output.line(text)
        return
    for row in report.throughput.table:
        output.line(row)
    picture = folder.draw_curves()
    if picture is not None:
        output.line(f"Curves: {picture}")
    for text in said:
        output.line(text)
    if line.print_fom:
        best = min((row["val_loss"] for row in folder.history if "val_loss" in row), default=None)
        output.line("FoM: none, without validation" if best is None else f"FoM: {best:.6g}")
    output.line(report.throughput.final_line)
