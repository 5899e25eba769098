"""From what the user passed as data to a feed."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
from convoy import keras_bridge
from convoy.engine import checks
from convoy.engine.data.chunks import Budget, Cut, Feed, size
from convoy.engine.data.resident import Resident
from convoy.engine.data.streamed import Streamed
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import Mode
from convoy.keras_bridge import Batches

DEFAULT_BATCH = 32


def open_input(
    model: keras.Model,
    mode: Mode,
    data: tuple[Any, Any, Any],
    config: ExecutionConfig,
    budget: Budget,
    block_steps: int,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
) -> Feed:
    """Build the model for its data, check both, and choose how to feed it.

    Args:
        model: the model that will run.
        mode: what it will do. Training leaves out samples that do not fill a weight update.
        data: inputs, targets and sample weights; or a data set, `None` and `None`.
        config: how the work is divided.
        budget: memory for data; what the feed keeps there is taken from it.
        block_steps: the most steps that one device call will run.
        batch_size: samples in a step, of one replica or of all by `plan.batch`, if the data is
            arrays.
        steps: steps in an epoch, if not all of the data.
        shuffle: as in `keras.Model.fit`.
        class_weight: as in `keras.Model.fit`.

    Raises:
        ValueError: if the data does not fit the model.
    """
    cut = config.cut(mode)
    if mode == "train":
        _check_steps(steps, cut)
    batches_per_step = 1
    if keras_bridge.is_array_data(data):
        checks.check_numbers(data)
        batch_size = _step_samples(data[0], batch_size, steps, config)
        if mode == "train":
            _check_batch(data[0], batch_size, cut, config)
    elif config.batch == "replica":
        # Each batch that such an input yields is one replica's.
        batches_per_step = config.replicas
        steps = steps and steps * config.replicas
    batches = Batches(*data, batch_size, steps, shuffle, class_weight)
    if batches.num_batches == 0:
        raise ValueError(f"{type(data[0]).__name__} has no batch: its length is 0. Pass more data.")

    def explain(batch: Any) -> None:
        checks.explain_targets(model, keras_bridge.unpack(batch)[1])

    arrays = batches.arrays
    if arrays is not None:
        x, y, _ = keras_bridge.unpack(arrays)
        checks.check_inputs(model, x)
        batches.build(model, mode, explain)
        checks.check_targets(model, y)
    else:
        batches.build(model, mode, explain)

    if arrays is not None and budget.reserve(size(arrays)):
        return Resident(arrays, batches, config.placement, cut, training=mode == "train")
    return Streamed(
        batches,
        config.placement,
        cut,
        budget.left,
        block_steps,
        batches_per_step=batches_per_step,
        restarts=mode == "evaluate",
        inspect=(lambda batch: check_batch(model, batch)) if arrays is None else None,
    )


def check_batch(model: keras.Model, batch: Any) -> None:
    x, y, _ = keras_bridge.unpack(batch)
    checks.count_samples(x)
    checks.check_inputs(model, x)
    checks.check_targets(model, y)


def _step_samples(
    x: Any, batch_size: int | None, steps: int | None, config: ExecutionConfig
) -> int:
    """Return the samples in a step over all replicas."""
    samples = checks.count_samples(x)
    copies = config.replicas if config.batch == "replica" else 1
    if batch_size is None:
        batch_size = -(-samples // (steps * copies)) if steps else DEFAULT_BATCH
    elif (
        isinstance(batch_size, bool)
        or not isinstance(batch_size, int | np.integer)
        or batch_size < 1
    ):
        raise ValueError(f"batch_size={batch_size} is not a number of samples. Pass 1 or more.")
    return int(batch_size) * copies


def _check_steps(steps: int | None, cut: Cut) -> None:
    if steps and steps % cut.group:
        near = max(1, round(steps / cut.group)) * cut.group
        raise ValueError(
            f"steps_per_epoch={steps} is not a multiple of gradient_accumulation={cut.group}, so "
            f"an epoch would end inside of a weight update. Pass {near}."
        )


def _check_batch(x: Any, batch: int, cut: Cut, config: ExecutionConfig) -> None:
    """Refuse a batch that does not divide, or more than there is; say what is left out."""
    samples = checks.count_samples(x)
    if not cut.shards(batch):
        unit = config.micro_batches
        raise ValueError(
            f"batch_size={batch} does not divide over {_division(config)} = {unit} micro-batches. "
            f"Pass a multiple of {unit}, for example {-(-batch // unit) * unit}."
        )
    update = batch * cut.group
    if cut.keeps_rest or samples % update == 0:
        return
    if samples < update:
        raise ValueError(
            f"The data has {samples} samples, fewer than one weight update takes: batch_size "
            f"{batch // config.replicas} x {_division(config)} = {update}. Pass a smaller "
            "batch_size, more data, or fewer devices or micro-batches."
        )
    warnings.warn(
        f"{samples % update} of {samples} samples do not fill a weight update of {update} and are "
        "left out of each epoch. Choose a batch_size that divides the data, or trim it.",
        stacklevel=5,  # whoever called fit
    )


def _division(config: ExecutionConfig) -> str:
    replicas = f"{config.replicas} replicas"
    count = config.accumulation.count
    return f"{replicas} x {count} accumulated" if count > 1 else replicas
