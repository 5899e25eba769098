"""Weights & Biases, and MLflow: for those who asked, and have them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convoy.train.metrics_row import Record
from convoy.train.options import Options
from convoy.train.recipe import as_recipe

Listener = Callable[[Record], None]
PROJECT = "convoy"


def check_installed(options: Options) -> None:
    """Refuse what was asked for and is not installed.

    Raises:
        ValueError: with the package that is missing.
    """
    for name in _asked(options):
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"--{name} needs the package {name}. Install it with: pip install {name}"
            )


@contextlib.contextmanager
def trackers(options: Options, folder: Path) -> Iterator[list[Listener]]:
    """Tell services of a run: its flags now, and every record that the listeners are called with.

    A run that is resumed goes on there too.

    Args:
        options: of the run.
        folder: of the run.
    """
    openers = {"wandb": _wandb, "mlflow": _mlflow}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(openers[name](importlib.import_module(name), options, folder))
            for name in _asked(options)
        ]


def _asked(options: Options) -> list[str]:
    return [name for name in ("wandb", "mlflow") if getattr(options, name)]


@contextlib.contextmanager
def _wandb(wandb: Any, options: Options, folder: Path) -> Iterator[Listener]:
    known = _noted(folder / ".wandb-run") if options.resume else None
    run = wandb.init(
        project=PROJECT,
        name=options.wandb_run_name or folder.name,
        tags=options.wandb_tags,
        config=dict(as_recipe(options)),
        dir=str(folder),
        id=known,
        resume="allow" if known else None,
    )
    (folder / ".wandb-run").write_text(run.id)
    try:
        yield lambda record: run.log(_values(record))
    finally:
        run.finish()


@contextlib.contextmanager
def _mlflow(mlflow: Any, options: Options, folder: Path) -> Iterator[Listener]:
    known = _noted(folder / ".mlflow-run") if options.resume else None
    mlflow.set_experiment(PROJECT)
    run = mlflow.start_run(run_id=known, run_name=None if known else folder.name)
    if not known:
        mlflow.log_params(dict(as_recipe(options)))
    (folder / ".mlflow-run").write_text(run.info.run_id)
    try:
        yield lambda record: mlflow.log_metrics(_values(record), step=record.update)
    finally:
        mlflow.end_run()


def _noted(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


def _values(record: Record) -> dict[str, float]:
    return {
        f"{record.phase}/{name}": value
        for name, value in asdict(record).items()
        if isinstance(value, float)
    }
