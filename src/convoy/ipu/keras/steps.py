"""How many steps an epoch of `fit` has, by the rules of Graphcore's software."""

from __future__ import annotations

import math
from typing import Any

import jax
import keras
from convoy.ipu.notice import log

DEFAULT_BATCH = 32


def steps_per_replica(arguments: dict[str, Any], replicas: int) -> int:
    """Return the steps of an epoch on each replica.

    Args:
        arguments: those of `fit`.
        replicas: of the model.

    Raises:
        ValueError: if the data does not come in whole batches, its size is unknown, or it has not
            a batch for each replica.
    """
    _check_whole(arguments)
    batches = _batches(arguments, replicas)
    if batches < replicas:
        raise ValueError(
            f"The data has {batches} batches, fewer than the {replicas} replicas. Pass more data, "
            "or a smaller batch_size."
        )
    if batches % replicas:
        log.warning(
            f"{batches % replicas} of {batches} batches are left out of each epoch: they do not "
            f"divide over {replicas} replicas."
        )
    return batches // replicas


def of_each_replica(steps: int, replicas: int) -> int:
    """Return the steps of `evaluate` or `predict` on each replica.

    Args:
        steps: batches of all replicas together, as given.
        replicas: of the model.

    Raises:
        ValueError: if there is not a batch for each replica.
    """
    if steps < replicas:
        raise ValueError(
            f"steps={steps} is fewer than the {replicas} replicas, which take a batch each. Pass a "
            f"multiple of {replicas}."
        )
    if steps % replicas:
        log.warning(
            f"steps={steps} does not divide over {replicas} replicas: {steps % replicas} batches "
            "are left out."
        )
    return steps // replicas


def _check_whole(arguments: dict[str, Any]) -> None:
    """Refuse a data set whose last batch may be, or is, smaller than the others.

    Raises:
        ValueError: if it is one.
    """
    x: Any = arguments.get("x")
    for spec in keras.tree.flatten(getattr(x, "element_spec", ())):
        if None in tuple(spec.shape):
            raise ValueError(
                f"The data set has batches of shape {tuple(spec.shape)}, where None is not known "
                "beforehand. Make them by batch(..., drop_remainder=True)."
            )
    if isinstance(x, keras.utils.PyDataset) and x.num_batches:
        steps = arguments.get("steps_per_epoch")
        if steps is not None and steps < x.num_batches:
            return  # a run may end before the last one
        first, last = (_samples(x[index]) for index in (0, x.num_batches - 1))
        if first != last:
            raise ValueError(
                f"The last batch of {type(x).__name__} has {last} samples, the first {first}. "
                "Leave out the incomplete one."
            )


def _samples(batch: Any) -> int:
    return int(jax.tree.leaves(batch)[0].shape[0])


def _batches(arguments: dict[str, Any], replicas: int) -> int:
    x: Any = arguments.get("x")
    steps = arguments.get("steps_per_epoch")
    if hasattr(x, "__next__"):
        raise ValueError(
            f"x is a {type(x).__name__}, whose shapes are not known beforehand. Pass arrays or a "
            "data set."
        )
    if isinstance(x, keras.utils.PyDataset):
        known = x.num_batches
    elif _is_arrays(x):
        known = _whole_batches(arguments)
    else:
        known = _length(x)
    if steps is not None:
        if known is not None and not _is_arrays(x) and not isinstance(x, keras.utils.PyDataset):
            _check_length(int(steps) // replicas, int(known), arguments)
        return int(steps)
    if known is None:
        raise ValueError(
            f"The number of batches of {type(x).__name__} is not known. Pass steps_per_epoch."
        )
    return int(known)


def _check_length(steps: int, known: int, arguments: dict[str, Any]) -> None:
    """Refuse a run that asks for more batches on each replica than a data set has.

    One that is an epoch long begins anew for each; of a longer one every epoch takes the next.
    """
    epochs = max(1, arguments.get("epochs", 1) - arguments.get("initial_epoch", 0))
    total = steps if steps == known else steps * epochs
    if total > known:
        raise ValueError(
            f"{steps} steps on each replica in {epochs} epochs are {total} batches, but the data "
            f"set has {known}. Repeat it, or pass fewer steps_per_epoch."
        )


def _length(x: Any) -> int | None:
    # Data sets of unknown length may have the method, and refuse to answer.
    try:
        return len(x)
    except TypeError:
        return None


def _whole_batches(arguments: dict[str, Any]) -> int:
    samples = int(jax.tree.leaves(arguments["x"])[0].shape[0])
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


def _is_arrays(x: Any) -> bool:
    leaves = jax.tree.leaves(x)
    return bool(leaves) and all(getattr(leaf, "shape", ()) for leaf in leaves)


def check_execution(steps: int, steps_per_execution: int, accumulation: int) -> None:
    """Refuse device calls that do not divide an epoch, or end inside of a weight update.

    Args:
        steps: of an epoch on each replica.
        steps_per_execution: as given to `compile`; more than an epoch has are one epoch's.
        accumulation: micro-batches of a weight update.

    Raises:
        RuntimeError: if a device call would end inside of a weight update.
        ValueError: if an epoch would end inside of a device call.
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
    if steps_per_execution % accumulation:
        raise RuntimeError(
            f"steps_per_execution={steps_per_execution} is not a multiple of "
            f"gradient_accumulation_steps_per_replica={accumulation}, so an execution would end "
            "inside of a weight update. Choose a multiple."
        )
