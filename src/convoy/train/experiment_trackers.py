"""Experiment trackers: Weights & Biases and MLflow."""

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from convoy.arguments import require_package
from convoy.train.flags import Options
from convoy.train.metrics import MetricsRow
from convoy.train.recipe import as_recipe

Tracker = Callable[[MetricsRow], None]
"""A function that logs a row of metrics."""
PROJECT = "convoy"


def check_installed(options: Options) -> None:
    """Check that the packages of the enabled trackers are installed.

    Raises:
        ValueError: if one is missing.
    """
    for name in _enabled(options):
        require_package(name, f"--{name}")


@contextlib.contextmanager
def open_trackers(options: Options, folder: Path) -> Iterator[list[Tracker]]:
    """Log the options of a run to the enabled trackers, and yield a function for each.

    A resumed run continues the tracker's earlier run.

    Args:
        options: options of the run.
        folder: folder of the run.
    """
    openers = {"wandb": _wandb, "mlflow": _mlflow}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(openers[name](importlib.import_module(name), options, folder))
            for name in _enabled(options)
        ]


def _enabled(options: Options) -> list[str]:
    return [name for name in ("wandb", "mlflow") if getattr(options, name)]


@contextlib.contextmanager
def _wandb(wandb: Any, options: Options, folder: Path) -> Iterator[Tracker]:
    earlier = _read(folder / ".wandb-run") if options.resume else None
    run = wandb.init(
        project=PROJECT,
        name=options.wandb_run_name or folder.name,
        tags=options.wandb_tags,
        config=as_recipe(options),
        dir=str(folder),
        id=earlier,
        resume="allow" if earlier else None,
    )
    (folder / ".wandb-run").write_text(run.id)
    try:
        yield lambda row: run.log(row.scalars)
    finally:
        run.finish()


@contextlib.contextmanager
def _mlflow(mlflow: Any, options: Options, folder: Path) -> Iterator[Tracker]:
    earlier = _read(folder / ".mlflow-run") if options.resume else None
    mlflow.set_experiment(PROJECT)
    run = mlflow.start_run(run_id=earlier, run_name=None if earlier else folder.name)
    if not earlier:
        mlflow.log_params(as_recipe(options))
    (folder / ".mlflow-run").write_text(run.info.run_id)
    try:
        yield lambda row: mlflow.log_metrics(row.scalars, step=row.update)
    finally:
        mlflow.end_run()


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None
