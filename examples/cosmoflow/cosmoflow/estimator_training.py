"""Training with an estimator."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import convoy
import keras
import numpy as np
from convoy import distributed
from convoy.estimator import Estimator, EstimatorSpec, Hook, RunConfig, checkpoints
from convoy.estimator.hooks import Run

from cosmoflow.input import Input
from cosmoflow.network import (
    Networks,
    learning_rate,
    make_network,
    make_optimizer,
    metric_names,
)
from cosmoflow.progress import Progress
from cosmoflow.run_plan import RunPlan
from cosmoflow.training import SHOWN, compare


class _ProgressHook(Hook):
    """Reports the device calls of an estimator.

    Args:
        progress: progress of the run.
        first: global step at which the run began.
    """

    def __init__(self, progress: Progress, first: int) -> None:
        self.progress = progress
        self.first = first
        self.losses: list[float] = []

    def after_execution(self, run: Run) -> None:
        self.losses.append(run.loss or 0.0)
        self.progress.after_call(run.global_step - self.first, self.losses[-1])


def make_estimator(
    networks: Networks, plan: RunPlan, strategy: convoy.Strategy, folder: Path
) -> Estimator:
    """Return an estimator with its checkpoints in a folder."""
    settings = plan.settings

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        del labels  # loss and metrics receive them
        predictions = make_network(networks, settings)(features)
        return EstimatorSpec(
            mode,
            predictions=predictions,
            loss=keras.losses.get(settings.train.loss),
            optimizer=make_optimizer(settings, learning_rate(plan)),
            metrics={name: keras.metrics.get(name) for name in metric_names(settings)},
        )

    config = RunConfig(
        folder,
        strategy=strategy,
        steps_per_execution=plan.steps_per_execution,
        stages=settings.ipu_config.stages,
        seed=settings.train.seed,
        log_every=None,
    )
    return Estimator(model_fn, config=config)


def train(estimator: Estimator, data: Input, progress: Progress, *, resume: bool) -> list[str]:
    """Train from the newest checkpoint on, with validation after every epoch.

    Args:
        estimator: the estimator.
        data: input of the run.
        progress: progress of the run.
        resume: whether the steps of the checkpoint belong to this run; otherwise the steps of this
            run are added to them, like `steps` of `Estimator.train`.

    Returns:
        Lines about the predictions, to be printed at the end.
    """
    plan = data.plan
    newest = estimator.latest_checkpoint()
    before = 0 if newest is None else checkpoints.global_step(checkpoints.read(newest))
    if resume and before >= plan.steps:
        return [f"Nothing was trained: {newest} has {before} of {plan.steps} steps."]
    first, done = (0, before) if resume else (before, 0)
    if first:
        progress.output.line(f"{plan.steps} steps are added to the {first} of {newest}.")
    # An added run begins with an epoch of the data.
    epochs_before = -(-first // plan.steps_per_epoch)
    progress.begin(done)
    while done < plan.steps:
        epoch = done // plan.steps_per_epoch + 1
        end = epoch * plan.steps_per_epoch if data.validation is not None else plan.steps
        hook = _ProgressHook(progress, first)
        batch = (epochs_before * plan.steps_per_epoch + done) * plan.batch.replicas
        estimator.train(
            lambda batch=batch: data.local_train_batches(batch), [hook], max_steps=first + end
        )
        done = end
        values = {"loss": float(np.mean(hook.losses))} | _validate(estimator, data)
        progress.after_epoch(done // plan.steps_per_epoch, values)
        progress.restart_clock()
        if progress.reached_target(values):
            break
    progress.end()
    if data.validation is None:
        return []
    predictions = islice(estimator.predict(lambda: data.validation), SHOWN)
    return compare(np.stack(list(predictions)), data, progress.folder)


def _validate(estimator: Estimator, data: Input) -> dict[str, float]:
    if data.validation is None:
        return {}
    found = estimator.evaluate(lambda: data.validation)
    return {f"val_{name}": value for name, value in found.items() if name != "global_step"}


@contextlib.contextmanager
def checkpoint_folder(path: Path) -> Iterator[Path]:
    """Yield the checkpoint folder of this process.

    The first process uses the folder of the run. The other processes write the same checkpoints to
    temporary folders.
    """
    if distributed.is_first():
        distributed.wait_for_all("checkpoints are copied")
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkpoints"
        if path.is_dir():
            shutil.copytree(path, copy)
        distributed.wait_for_all("checkpoints are copied")
        yield copy
