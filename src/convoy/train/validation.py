"""The validation phase: no sample is lost, whatever the batch and the number of devices."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import convoy
import keras
import numpy as np
from convoy.progress_bar import Output
from convoy.train.input import Images, test_input
from convoy.train.loss import make_accuracy, make_loss
from convoy.train.metrics_row import Record
from convoy.train.network import make_network, with_views
from convoy.train.run_folder import RunFolder, epoch_of
from convoy.train.run_settings import RunPlan


def validation_strategy(plan: RunPlan) -> convoy.Strategy:
    return convoy.Strategy(devices=plan.validation_replicas, precision=plan.options.precision)


class Validation:
    """A model of its own, which takes the weights of checkpoints one after the other.

    Args:
        plan: of the run.
        strategy: where it runs.
        images: of which the held-out ones are used.

    Raises:
        ValueError: if the model cannot be made.
    """

    def __init__(self, plan: RunPlan, strategy: convoy.Strategy, images: Images) -> None:
        self.plan = plan
        self.images = images
        self.samples = images.test_samples
        if not self.samples:
            raise ValueError(f"{plan.info.name} has no image to validate on.")
        with strategy.scope():
            self.network = make_network(plan.options, plan.info, plan.batch.accumulation)
            views = plan.options.validation_views
            self.model = self.network if views == 1 else with_views(self.network, views)
            self.model.compile(
                loss=make_loss(plan.options.label_smoothing, shares=False),
                metrics=[make_accuracy("validation_accuracy", shares=False)],
                steps_per_execution=math.ceil(
                    self.samples / (plan.validation_batch * plan.validation_replicas)
                ),
            )

    def of_checkpoints(
        self,
        paths: Sequence[Path],
        folder: RunFolder,
        output: Output,
        listeners: list[Callable[[Record], None]],
    ) -> list[Record]:
        """Validate checkpoints in their order."""
        records = []
        output.begin(len(paths), "validating ...")
        with test_input(self.plan, self.images) as data:
            for done, path in enumerate(paths, start=1):
                load_checkpoint(self.network, path)
                record = self._evaluate(data, epoch_of(path))
                records.append(record)
                self._report(record, folder, output, listeners)
                accuracy = {"accuracy": f"{record.accuracy:.2%}"}
                output.advance(done, f"checkpoint {done}/{len(paths)}", accuracy)
        output.end()
        return records

    def of_weights(
        self,
        weights: list[np.ndarray] | None,
        epoch: float,
        folder: RunFolder,
        output: Output,
        listeners: list[Callable[[Record], None]],
    ) -> Record:
        """Validate some weights, or those that the model was made with."""
        if weights is not None:
            self.network.set_weights(weights)
        with test_input(self.plan, self.images) as data:
            record = self._evaluate(data, epoch)
        self._report(record, folder, output, listeners)
        return record

    def _evaluate(self, data: dict[str, Any], epoch: float) -> Record:
        began = time.perf_counter()
        values: dict[str, Any] = self.model.evaluate(**data, verbose=0, return_dict=True)
        return Record(
            "validation",
            round(epoch * self.plan.events.updates_per_epoch),
            epoch,
            values["loss"],
            values["validation_accuracy"],
            self.samples / (time.perf_counter() - began),
        )

    @staticmethod
    def _report(
        record: Record,
        folder: RunFolder,
        output: Output,
        listeners: list[Callable[[Record], None]],
    ) -> None:
        folder.add(record)
        output.line(record.sentence if output.is_terminal else f"validation: {record.fields}")
        for listener in listeners:
            listener(record)


def load_checkpoint(model: keras.Model, path: Path) -> None:
    """Give a model the weights in a file.

    Raises:
        ValueError: if the file is damaged, or holds the weights of another model.
    """
    try:
        with warnings.catch_warnings():
            # The file has the state of the optimizer too, which nobody validates.
            warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
            model.load_weights(path)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{path} does not hold the weights of {model.name}: {reason}") from None


def sweep_metrics(records: Sequence[Record], target: float) -> dict[str, float]:
    """Return when the target accuracy was reached, and how near the run came to it, by epoch.

    The second is `exp(-((accuracy - target) / 0.02)^2 / 2) / epoch` of the last record, where
    an accuracy above the target counts as the target.
    """
    metrics = {}
    reached = [record.epoch for record in records if record.accuracy >= target]
    if reached:
        metrics["epoch_to_target"] = reached[0]
    last = records[-1]
    if last.epoch:
        short = min(last.accuracy - target, 0) / 0.02
        metrics["optimization_metric"] = math.exp(-0.5 * short**2) / last.epoch
    return metrics
