"""Training by an estimator."""

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
from convoy.estimator import Estimator, EstimatorSpec, Hook, RunConfig
from convoy.estimator import saved as checkpoints
from convoy.estimator.hooks import Run

from cosmoflow.input import Input
from cosmoflow.network import (
    Networks,
    learning_rate,
    make_network,
    make_optimizer,
    metrics_of,
)
from cosmoflow.progress import Report
from cosmoflow.run_plan import Plan
from cosmoflow.training import SHOWN, compare


class _Tell(Hook):
    """Tells a report of what an estimator does."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.losses: list[float] = []

    def after_execution(self, run: Run) -> None:
        self.losses.append(run.loss or 0.0)
        self.report.after_call(run.global_step, self.losses[-1])


def make_estimator(
    networks: Networks, plan: Plan, strategy: convoy.Strategy, folder: Path
) -> Estimator:
    """Return an estimator whose checkpoints are in a folder."""
    settings = plan.settings

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        del labels  # the loss and the metrics are given them
        predictions = make_network(networks, settings)(features)
        return EstimatorSpec(
            mode,
            predictions=predictions,
            loss=keras.losses.get(settings.train.loss),
            optimizer=make_optimizer(settings, learning_rate(plan)),
            metrics={name: keras.metrics.get(name) for name in metrics_of(settings)},
        )

    config = RunConfig(
        folder,
        strategy=strategy,
        steps_per_execution=plan.steps_per_call,
        stages=settings.devices.stages,
        seed=settings.train.seed,
        log_every=None,
    )
    return Estimator(model_fn, config=config)


def train(estimator: Estimator, data: Input, report: Report) -> list[str]:
    """Train from the newest checkpoint on; validate after every epoch, if at all.

    Returns:
        What there is to say at the end.
    """
    plan = data.plan
    newest = estimator.latest_checkpoint()
    done = 0 if newest is None else checkpoints.global_step(checkpoints.read(newest))
    if done >= plan.steps:
        return [f"Nothing was trained: {newest} has {done} of {plan.steps} steps."]
    report.start_at(done)
    report.begin()
    while done < plan.steps:
        epoch = done // plan.steps_per_epoch + 1
        end = epoch * plan.steps_per_epoch if data.validation is not None else plan.steps
        tell = _Tell(report)
        first = done * plan.batch.replicas
        estimator.train(lambda first=first: data.own_train(first), [tell], max_steps=end)
        done = end
        values = {"loss": float(np.mean(tell.losses))}
        values |= _validated(estimator, data)
        report.after_epoch(done // plan.steps_per_epoch, values)
        report.resume_clock()
        if report.reached_target(values):
            break
    report.end()
    return _predicted(estimator, data, report)


def _validated(estimator: Estimator, data: Input) -> dict[str, float]:
    if data.validation is None:
        return {}
    found = estimator.evaluate(lambda: data.validation)
    return {f"val_{name}": value for name, value in found.items() if name != "global_step"}


def _predicted(estimator: Estimator, data: Input, report: Report) -> list[str]:
    if data.validation is None:
        return []
    samples = islice(estimator.predict(lambda: data.validation), SHOWN)
    return compare(np.stack(list(samples)), data, report.folder)


@contextlib.contextmanager
def checkpoint_folder(path: Path) -> Iterator[Path]:
    """Return where a process has its checkpoints: the first one's are those of the run.

    The others write the same to folders of their own, which are removed.
    """
    if distributed.is_first():
        distributed.wait_for_all("checkpoints are copied")
        yield path
        return
    with tempfile.TemporaryDirectory() as own:
        copy = Path(own) / "checkpoints"
        if path.is_dir():
            shutil.copytree(path, copy)
        distributed.wait_for_all("checkpoints are copied")
        yield copy
