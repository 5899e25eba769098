"""The validation phase, which uses each sample once for any batch size and number of devices."""

import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import convoy
import keras
import numpy as np
from convoy.error_messages import first_line
from convoy.timing import compilation_seconds, execution_seconds
from convoy.train.input import Images, test_input
from convoy.train.loss import make_accuracy, make_loss
from convoy.train.metrics import MetricsRow
from convoy.train.network import make_network, with_views
from convoy.train.run_folder import epoch_of
from convoy.train.run_log import RunLog
from convoy.train.run_settings import RunSettings
from convoy.train.stages import split_into_stages


def validation_strategy(settings: RunSettings) -> convoy.Strategy:
    return convoy.Strategy(
        devices=settings.validation_devices, precision=settings.options.precision
    )


class Validation:
    """A second model, into which the weights of each checkpoint are loaded in turn.

    Args:
        settings: settings of the run.
        strategy: devices and precision of the validation.
        images: the dataset.

    Raises:
        ValueError: if the model cannot be made.
    """

    def __init__(self, settings: RunSettings, strategy: convoy.Strategy, images: Images) -> None:
        self.settings = settings
        self.images = images
        self.samples = images.test_samples
        if not self.samples:
            raise ValueError(
                f"--dataset {settings.info.name} has no image to validate on. Pass --validation "
                "False."
            )
        options = settings.options
        with strategy.scope():
            self.network = make_network(
                options, settings.info, settings.batch.gradient_accumulation
            )
            views = options.validation_views
            self.model = self.network if views == 1 else with_views(self.network, views)
            self.model.compile(
                loss=make_loss(options.label_smoothing, probabilities=False),
                metrics=[make_accuracy("validation_accuracy", probabilities=False)],
                steps_per_execution=math.ceil(
                    self.samples / (settings.validation_batch * settings.validation_replicas)
                ),
            )
        if settings.validates_in_stages:
            split_into_stages(self.model, settings, settings.validation_batch)

    def of_checkpoints(self, paths: Sequence[Path], log: RunLog) -> list[MetricsRow]:
        """Validate checkpoints in the given order."""
        rows = []
        log.output.begin(len(paths), "validating ...")
        with test_input(self.settings, self.images) as data:
            for done, path in enumerate(paths, start=1):
                load_checkpoint(self.network, path)
                row = self._evaluate(data, epoch_of(path))
                rows.append(row)
                log.log(row, "validation")
                accuracy = {"accuracy": f"{row.accuracy:.2%}"}
                log.output.advance(done, f"checkpoint {done}/{len(paths)}", accuracy)
        log.output.end()
        return rows

    def of_weights(self, weights: list[np.ndarray] | None, epoch: float, log: RunLog) -> MetricsRow:
        """Validate the given weights, or the initial ones."""
        if weights is not None:
            self.network.set_weights(weights)
        with test_input(self.settings, self.images) as data:
            row = self._evaluate(data, epoch)
        log.log(row, "validation")
        return row

    def probabilities(self, weights: Path | None) -> np.ndarray:
        """Return the probability of each class for each image, with the weights of a checkpoint.

        Args:
            weights: path of the checkpoint; without it, the weights stay as they are.
        """
        if weights is not None:
            load_checkpoint(self.network, weights)
        with test_input(self.settings, self.images) as data:
            inputs = {name: value for name, value in data.items() if name != "y"}
            return self.model.predict(**inputs, verbose=0)

    def _evaluate(self, data: dict[str, Any], epoch: float) -> MetricsRow:
        began = time.perf_counter()
        compilation_seconds(began)  # from now on
        values: dict[str, Any] = self.model.evaluate(**data, verbose=0, return_dict=True)
        return MetricsRow(
            "validation",
            round(epoch * self.settings.events.updates_per_epoch),
            epoch,
            values["loss"],
            values["validation_accuracy"],
            self.samples / execution_seconds(began, time.perf_counter()),
        )


def load_checkpoint(model: keras.Model, path: Path) -> None:
    """Load the weights of a file into a model.

    Raises:
        ValueError: if the file is damaged, or has the weights of another model.
    """
    try:
        with warnings.catch_warnings():
            # The file also has the optimizer state, which validation does not need.
            warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
            model.load_weights(path)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path} does not hold the weights of {model.name}: {first_line(error).rstrip('.')}. "
            "Pass a checkpoint of the same network."
        ) from None


def sweep_metrics(rows: Sequence[MetricsRow], target: float) -> dict[str, float]:
    """Return the metrics of a hyperparameter sweep.

    `epoch_to_target` is the epoch at which the target accuracy was reached, if it was.
    `optimization_metric` is `exp(-((accuracy - target) / 0.02)^2 / 2) / epoch` of the last row,
    where an accuracy above the target counts as the target.
    """
    metrics = {}
    reached = [row.epoch for row in rows if row.accuracy >= target]
    if reached:
        metrics["epoch_to_target"] = reached[0]
    last = rows[-1]
    if last.epoch:
        distance = min(last.accuracy - target, 0) / 0.02
        metrics["optimization_metric"] = math.exp(-0.5 * distance**2) / last.epoch
    return metrics
