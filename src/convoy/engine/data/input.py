"""Conversion of a user's input data into a feed."""

from dataclasses import dataclass

import keras
from convoy import keras_bridge, user_warnings
from convoy.arguments import whole_number
from convoy.engine import checks
from convoy.engine.data.chunks import Feed, StepDivision
from convoy.engine.data.placement import tree_bytes
from convoy.engine.data.resident import Resident
from convoy.engine.data.streamed import Streamed
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import Mode
from convoy.keras_bridge import Batches
from convoy.types import Batch, Data
from convoy.units import format_count

DEFAULT_BATCH = 32

InputData = tuple[Data, Data, Data]
"""Inputs, targets and sample weights; or a dataset, `None` and `None`."""


@dataclass
class Budget:
    """Memory that data may take on each device, in bytes."""

    left: int

    def reserve(self, size: int) -> bool:
        """Reserve a part of the budget; return whether enough was left."""
        if size > self.left:
            return False
        self.left -= size
        return True


def open_input(
    model: keras.Model,
    mode: Mode,
    data: InputData,
    config: ExecutionConfig,
    budget: Budget,
    steps_per_block: int,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
    was_built: bool = True,
) -> Feed:
    """Build the model for its data, check both, and choose the kind of feed.

    Args:
        model: the model that will run.
        mode: mode of the run. Training drops samples that do not fill a weight update.
        data: inputs, targets and sample weights; or a dataset, `None` and `None`.
        config: configuration of the run.
        budget: memory for data, from which the feed reserves the bytes that it keeps on the device.
        steps_per_block: maximum number of steps in a block of streamed data.
        batch_size: samples in a step, of one replica or of all by `config.batch`, if the data is
            arrays.
        steps: steps in an epoch, if not all of the data.
        shuffle: as in `keras.Model.fit`.
        class_weight: as in `keras.Model.fit`.
        was_built: whether all layers were built when the run began.

    Raises:
        ValueError: if the data does not fit the model.
    """
    division, steps = config.divisions[mode], keras_bridge.limit_steps(steps)
    if mode == "train":
        _check_steps(steps, division)
    step_samples, batches_per_step = None, 1
    if keras_bridge.is_array_data(data):
        samples = checks.check_arrays(data)
        step_samples = _step_samples(samples, batch_size, steps, config)
        if mode == "train":
            _check_step_samples(samples, step_samples, division, config)
    elif config.batch == "replica":
        # Each batch of such an input belongs to one replica.
        batches_per_step = division.replicas
        steps = steps and steps * batches_per_step
    batches = Batches(*data, step_samples, steps, shuffle, class_weight)
    if batches.num_batches == 0:
        raise ValueError(f"{type(data[0]).__name__} has no batch: its length is 0. Pass more data.")
    arrays = batches.arrays
    _build(model, mode, batches, arrays, was_built=was_built)

    # The budget is shared by training and validation data. Arrays that do not fit in what is left
    # are streamed, and the blocks of streamed data use what is left.
    if arrays is not None and step_samples and budget.reserve(tree_bytes(arrays)):
        return Resident(
            arrays,
            step_samples,
            config.placement,
            division,
            shuffle=shuffle,
            steps_per_epoch=steps,
            training=mode == "train",
        )
    return Streamed(
        batches,
        config.placement,
        division,
        budget.left,
        steps_per_block,
        batches_per_step=batches_per_step,
        restarts=mode == "evaluate",
        inspect=(lambda batch: check_batch(model, batch)) if arrays is None else None,
    )


def _build(
    model: keras.Model, mode: Mode, batches: Batches, arrays: Batch | None, *, was_built: bool
) -> None:
    """Build the model for its data, and check the data if it consists of arrays."""

    def explain(batch: Batch) -> None:
        checks.explain_targets(model, keras_bridge.unpack(batch)[1])

    # The inputs are checked first, because Keras's errors while it builds a model are less clear.
    # The targets are checked last, because only a built model has outputs to compare them with.
    if arrays is None:
        batches.build(model, mode, explain, was_built)
        return
    x, y, _ = keras_bridge.unpack(arrays)
    checks.check_inputs(model, x)
    batches.build(model, mode, explain, was_built)
    checks.check_targets(model, y)


def check_batch(model: keras.Model, batch: Batch) -> None:
    """Raise an error if a batch does not fit the model."""
    x, y, _ = keras_bridge.unpack(batch)
    checks.count_samples(x)
    checks.check_inputs(model, x)
    checks.check_targets(model, y)


def _step_samples(
    samples: int, batch_size: int | None, steps: int | None, config: ExecutionConfig
) -> int:
    """Return the samples in a step over all replicas."""
    replicas = config.placement.replicas if config.batch == "replica" else 1
    if batch_size is None:
        batch_size = -(-samples // (steps * replicas)) if steps else DEFAULT_BATCH
    whole_number("batch_size", batch_size, "a number of samples")
    return int(batch_size) * replicas


def _check_steps(steps: int | None, division: StepDivision) -> None:
    per_update = division.steps_per_update
    if steps and steps % per_update:
        near = max(1, round(steps / per_update)) * per_update
        raise ValueError(
            f"steps_per_epoch={steps} is not a multiple of gradient_accumulation={per_update}, so "
            f"an epoch would end inside of a weight update. Pass {near}."
        )


def _check_step_samples(
    samples: int, step_samples: int, division: StepDivision, config: ExecutionConfig
) -> None:
    """Check that a step is divisible and not too large; warn about dropped samples."""
    if step_samples % division.parts:
        unit = config.micro_batches
        raise ValueError(
            f"batch_size={step_samples} does not divide over {_factors(config)} = {unit} "
            f"micro-batches. Pass a multiple of {unit}, for example "
            f"{-(-step_samples // unit) * unit}."
        )
    update = step_samples * division.steps_per_update
    if division.keeps_incomplete or samples % update == 0:
        return
    if samples < update:
        raise ValueError(
            f"The data has {samples} samples, fewer than one weight update takes: batch_size "
            f"{step_samples // config.replicas} x {_factors(config)} = {update}. Pass a smaller "
            "batch_size, more data, or fewer devices or micro-batches."
        )
    user_warnings.warn(
        f"{samples % update} of {samples} samples do not fill a weight update of {update} and are "
        "left out of each epoch. Choose a batch_size that divides the data, or trim the data."
    )


def _factors(config: ExecutionConfig) -> str:
    replicas = format_count(config.replicas, "replica")
    gradient_accumulation = config.gradient_accumulation
    if gradient_accumulation == 1:
        return replicas
    return f"{replicas} x gradient_accumulation={gradient_accumulation}"
