"""From what the user passed as data to a feed."""

from __future__ import annotations

import warnings
from typing import Any

import keras
from convoy import keras_bridge
from convoy.engine import check
from convoy.engine.feed import Budget, Feed, Placement, size
from convoy.engine.resident import Resident
from convoy.engine.state import Mode
from convoy.engine.streamed import Streamed
from convoy.keras_bridge import Batches

DEFAULT_BATCH = 32


def open_input(
    model: keras.Model,
    mode: Mode,
    data: tuple[Any, Any, Any],
    placement: Placement,
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
        mode: what it will do. Training leaves out samples that do not fill a step of all replicas.
        data: inputs, targets and sample weights; or a data set, `None` and `None`.
        placement: where data goes.
        budget: memory for data; what the feed keeps there is taken from it.
        block_steps: the most steps that one device call will run.
        batch_size: samples of one replica in a step, if the data is arrays.
        steps: steps in an epoch, if not all of the data.
        shuffle: as in `keras.Model.fit`.
        class_weight: as in `keras.Model.fit`.

    Raises:
        ValueError: if the data does not fit the model.
    """
    is_array = keras_bridge.is_array_data(data)
    if is_array:
        batch_size = _global_batch(data[0], batch_size, steps, placement.replicas)
        if mode == "train":
            _check_last_batch(data[0], batch_size, placement.replicas)
    else:
        steps = steps and steps * placement.replicas
    batches = Batches(*data, batch_size, steps, shuffle, class_weight)
    if batches.num_batches == 0:
        raise ValueError(f"{type(data[0]).__name__} has no batch: its length is 0. Pass more data.")

    arrays = batches.arrays
    if arrays is not None:
        x, y, _ = keras_bridge.unpack(arrays)
        check.check_inputs(model, x)
        batches.build(model, mode)
        check.check_targets(model, y)
    else:
        batches.build(model, mode)

    training = mode == "train"
    if mode != "predict":
        check.check_reduction(model, placement.replicas)
    if arrays is not None and budget.reserve(size(arrays)):
        return Resident(arrays, batches, placement, training=training)
    return Streamed(
        batches,
        placement,
        budget.left,
        block_steps,
        training=training,
        restarts=mode == "evaluate",
        inspect=(lambda batch: check_batch(model, batch)) if arrays is None else None,
    )


def check_batch(model: keras.Model, batch: Any) -> None:
    x, y, _ = keras_bridge.unpack(batch)
    check.check_inputs(model, x)
    check.check_targets(model, y)


def _global_batch(x: Any, batch_size: int | None, steps: int | None, replicas: int) -> int:
    """Return the samples in a step over all replicas."""
    samples = check.count_samples(x)
    if batch_size is None:
        batch_size = -(-samples // (steps * replicas)) if steps else DEFAULT_BATCH
    elif batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is not a number of samples. Pass 1 or more.")
    return batch_size * replicas


def _check_last_batch(x: Any, batch: int, replicas: int) -> None:
    """Say what an epoch over several replicas leaves out; refuse if that is everything."""
    samples = check.count_samples(x)
    if replicas == 1 or samples % batch == 0:
        return
    if samples < batch:
        raise ValueError(
            f"The data has {samples} samples, fewer than one weight update takes: batch_size "
            f"{batch // replicas} x {replicas} replicas = {batch}. Pass a smaller batch_size, "
            "more data, or fewer devices."
        )
    warnings.warn(
        f"{samples % batch} of {samples} samples do not fill a weight update of {batch} and are "
        "left out of each epoch. Choose a batch_size that divides the data, or trim it.",
        stacklevel=4,
    )
