"""Steps per epoch and execution, by the rules of Graphcore's software."""

import math

import jax
import keras
from convoy.ipu import checks
from convoy.ipu.notice import log
from convoy.types import Batch, Data, Json

DEFAULT_BATCH = 32


def steps_per_replica(arguments: Json, replicas: int) -> int:
    """Return the steps of an epoch of `fit` on each replica.

    Args:
        arguments: the arguments of `fit`.
        replicas: number of replicas.

    Raises:
        ValueError: if the data has an incomplete batch, its size is unknown, or there is not a
            batch for each replica.
    """
    x = arguments.get("x")
    _check_complete(x, arguments.get("steps_per_epoch"))
    return per_replica("steps_per_epoch", _batches(x, arguments, replicas), replicas)


def per_replica(name: str, batches: int, replicas: int) -> int:
    """Return the batches of each replica.

    Args:
        name: name of the number.
        batches: batches of all replicas.
        replicas: number of replicas.

    Raises:
        ValueError: if there is not a batch for each replica.
    """
    if batches < replicas:
        raise ValueError(
            f"{name}={batches} is fewer than the {replicas} replicas, which take a batch each. "
            f"Pass a multiple of {replicas}."
        )
    if batches % replicas:
        log.warning(
            f"{name}={batches} does not divide over {replicas} replicas: {batches % replicas} "
            "batches are left out."
        )
    return batches // replicas


def _check_complete(x: Data, steps: int | None) -> None:
    """Raise `ValueError` if the last batch of a dataset is, or may be, incomplete."""
    for spec in keras.tree.flatten(getattr(x, "element_spec", ())):
        if None in tuple(spec.shape):
            raise ValueError(
                f"The dataset has batches of shape {tuple(spec.shape)}, where None is unknown. "
                "Make them with batch(..., drop_remainder=True)."
            )
    if isinstance(x, keras.utils.PyDataset) and x.num_batches:
        if steps is not None and steps < x.num_batches:
            return  # the run may end before the last batch
        first, last = (_samples(x[index]) for index in (0, x.num_batches - 1))
        if first != last:
            raise ValueError(
                f"The last batch of {type(x).__name__} has {last} samples, the first {first}. "
                "Leave out the incomplete one."
            )


def _samples(batch: Batch) -> int:
    return int(jax.tree.leaves(batch)[0].shape[0])


def _batches(x: Data, arguments: Json, replicas: int) -> int:
    """Return the batches of an epoch, over all replicas."""
    if hasattr(x, "__next__"):
        raise ValueError(f"x is a {type(x).__name__}. Pass arrays or a dataset.")
    leaves = jax.tree.leaves(x)
    is_arrays = bool(leaves) and all(getattr(leaf, "shape", ()) for leaf in leaves)
    is_dataset = isinstance(x, keras.utils.PyDataset)
    if is_dataset:
        known = x.num_batches
    else:
        known = _complete_batches(arguments) if is_arrays else _length(x)
    steps = arguments.get("steps_per_epoch")
    if steps is not None:
        if known is not None and not is_arrays and not is_dataset:
            _check_length(int(steps) // replicas, int(known), arguments)
        return int(steps)
    if known is None:
        raise ValueError(f"The length of {type(x).__name__} is not known. Pass steps_per_epoch.")
    return int(known)


def _check_length(steps: int, known: int, arguments: Json) -> None:
    """Raise `ValueError` if a dataset has too few batches for all epochs of a replica.

    A dataset that is as long as an epoch starts again for each; a longer one continues.
    """
    epochs = max(1, arguments.get("epochs", 1) - arguments.get("initial_epoch", 0))
    total = steps if steps == known else steps * epochs
    if total > known:
        raise ValueError(
            f"{steps} steps on each replica in {epochs} epochs are {total} batches, but the "
            f"dataset has {known}. Repeat it, or pass fewer steps_per_epoch."
        )


def _length(x: Data) -> int | None:
    # A dataset of unknown length may have `__len__`, and raise.
    try:
        return len(x)
    except TypeError:
        return None


def _complete_batches(arguments: Json) -> int:
    samples = _samples(arguments["x"])
    split = arguments.get("validation_split") or 0
    if split and arguments.get("validation_data") is None:
        samples = math.floor(samples * (1 - split))
    batch = arguments.get("batch_size") or DEFAULT_BATCH
    if samples % batch:
        raise ValueError(
            f"{samples} samples do not make whole batches of {batch}: {samples % batch} are left. "
            f"Trim the data to {samples - samples % batch} samples."
        )
    return samples // batch


def check_execution(steps: int, steps_per_execution: int, accumulation: int) -> None:
    """Check that executions consist of whole weight updates, and epochs of whole executions.

    Args:
        steps: steps of an epoch on each replica.
        steps_per_execution: the argument of `compile`; at most the steps of an epoch are used.
        accumulation: micro-batches per weight update.

    Raises:
        RuntimeError: if an execution would end inside of a weight update.
        ValueError: if an epoch would end inside of an execution.
    """
    _check_updates(steps_per_execution, accumulation)
    if steps_per_execution > steps:
        log.warning(
            f"steps_per_execution={steps_per_execution} is more than the {steps} steps of an epoch "
            "on each replica; these are run in one execution."
        )
        steps_per_execution = steps
        _check_updates(steps_per_execution, accumulation)
    if steps % steps_per_execution:
        raise ValueError(
            f"The {steps} steps of an epoch on each replica are not a multiple of "
            f"steps_per_execution={steps_per_execution}. Choose one that divides them, or trim the "
            "data."
        )


def _check_updates(steps_per_execution: int, accumulation: int) -> None:
    name, reason = "gradient_accumulation_steps_per_replica", checks.INSIDE_OF_UPDATE
    checks.multiple(
        "steps_per_execution", steps_per_execution, name, accumulation, reason, RuntimeError
    )
