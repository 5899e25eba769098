"""The application behind `train.py`: from a command line to a trained network."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
from convoy import distributed
from convoy.checkpoint import CheckpointError
from convoy.configuration import override, read_yaml
from convoy.progress_bar import Output
from convoy_command.parser import INTERRUPTED

from cosmoflow import data_benchmark, estimator_training, training
from cosmoflow.command_line import CommandLine, parse
from cosmoflow.input import open_input, open_splits
from cosmoflow.network import Networks, check_settings, make_model, make_strategy
from cosmoflow.progress import Progress
from cosmoflow.run_folder import RunFolder, dump
from cosmoflow.run_plan import RunPlan, make_plan
from cosmoflow.settings import read_settings


def main(
    networks: Networks,
    folder: Path,
    words: Sequence[str] | None = None,
    program: str = "train.py",
) -> int:
    """Train a network on volumes.

    Args:
        networks: functions that return a network, by name.
        folder: parent of the folder `configs`.
        words: arguments of the command line; by default those of this process.
        program: name of the program in messages.

    Returns:
        The exit status.
    """
    line = parse(sys.argv[1:] if words is None else words, program, folder)
    level = logging.DEBUG if line.verbose else logging.WARNING
    logging.basicConfig(format="%(levelname)s:%(name)s:%(message)s")
    logging.getLogger("convoy").setLevel(level)
    try:
        with _output_of_first_process() as output:
            return _run(networks, line, output)
    except (ValueError, CheckpointError) as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def _output_of_first_process() -> Iterator[Output]:
    """Return the output of the run; the other processes of a launch print nothing."""
    if distributed.is_first():
        yield Output()
        return
    with open(os.devnull, "w") as null:
        yield Output(null)


def _run(networks: Networks, line: CommandLine, output: Output) -> int:
    tree = override(read_yaml(line.config), line.overrides)
    settings = read_settings(tree, f"{line.config}: ")
    try:
        check_settings(networks, settings, use_estimator=line.use_estimator)
        plan = make_plan(settings)
    except ValueError as error:
        raise ValueError(f"{line.config}: {error}") from None
    if line.resume and not line.use_estimator:
        raise ValueError("--resume is for --use-estimator, which writes checkpoints. Pass both.")
    for notice in _notices(line, plan):
        output.line(notice)
    keras.utils.set_random_seed(settings.train.seed)
    splits = open_splits(settings.data, settings.train.seed)
    # A CPU must be divided into devices before anything is computed on it.
    strategy = make_strategy(plan)
    with open_input(plan, splits) as data:
        model = None if line.use_estimator else make_model(networks, plan, strategy)
        folder = RunFolder(settings.output_dir, tree)
        output.line(dump(tree).rstrip())
        if line.data_benchmark:
            assert model is not None
            data_benchmark.measure_input(data, output)
            data_benchmark.measure_waiting(model, data, output)
            return 0
        progress = Progress(plan, folder, output)
        if model is not None:
            last_lines = training.train(model, data, progress)
        else:
            with estimator_training.checkpoint_folder(folder.path) as path:
                estimator = estimator_training.make_estimator(networks, plan, strategy, path)
                last_lines = estimator_training.train(estimator, data, progress, resume=line.resume)
            folder.write_lines("estimator_throughput.txt", progress.throughput.table)
    _summarise(progress, last_lines, print_fom=line.print_fom)
    return 0


def _notices(line: CommandLine, plan: RunPlan) -> Iterator[str]:
    if line.distributed:
        yield "--distributed has no effect: `convoy launch` starts one run in many processes."
    requested, replicas = plan.settings.ipu_config.num_ipus, plan.batch.replicas
    if requested != replicas:
        yield f"num_ipus {requested} is overridden by the {replicas} replicas of the launch."


def _summarise(progress: Progress, last_lines: Sequence[str], *, print_fom: bool) -> None:
    output, folder, throughput = progress.output, progress.folder, progress.throughput
    if throughput.first is None:  # nothing was left to train
        lines = list(last_lines)
    else:
        curves = folder.draw_curves()
        lines = [*throughput.table, *([f"Curves: {curves}"] if curves else []), *last_lines]
        if print_fom:
            losses = [row["val_loss"] for row in folder.history if "val_loss" in row]
            lines.append(f"FoM: {min(losses):.6g}" if losses else "FoM: none, without validation")
        lines.append(throughput.final_line)
    for line in lines:
        output.line(line)
