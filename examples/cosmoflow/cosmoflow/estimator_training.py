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
    """Reports the device calls of an estimator."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.losses: list[float] = []

    def after_execution(self, run: Run) -> None:
        self.losses.append(run.loss or 0.0)
        self.progress.after_call(run.global_step, self.losses[-1])


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


def train(estimator: Estimator, data: Input, progress: Progress) -> list[str]:
    """Train from the newest checkpoint on, with validation after every epoch.

    Returns:
        Lines about the predictions, to be printed at the end.
    """
    plan = data.plan
    newest = estimator.latest_checkpoint()
    done = 0 if newest is None else checkpoints.global_step(checkpoints.read(newest))
    if done >= plan.steps:
        return [f"Nothing was trained: {newest} has {done} of {plan.steps} steps."]
    progress.begin(done)
    while done < plan.steps:
        epoch = done // plan.steps_per_epoch + 1
        end = epoch * plan.steps_per_epoch if data.validation is not None else plan.steps
        hook = _ProgressHook(progress)
        first = done * plan.batch.replicas
        estimator.train(lambda first=first: data.local_train_batches(first), [hook], max_steps=end)
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
    """Return the checkpoint folder of this process: that of the run, in the first process.

    The other processes write the same checkpoints to temporary folders.
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
