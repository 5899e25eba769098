"""What a run reads: images as arrays, or as batches that are made while it trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from convoy.data import augment
from convoy.data.batches import Batch, endless_batches
from convoy.data.catalog import DatasetInfo, Split, load
from convoy.data.rand_augment import rand_augment
from convoy.data.synthetic import synthetic_split
from convoy.vision.options import Options
from convoy.vision.plan import RunPlan


@dataclass(frozen=True)
class Images:
    """The splits of a run, as bytes."""

    train: Split
    test: Split


def open_images(options: Options, info: DatasetInfo, seed: int) -> Images:
    """Read the data set, or make one up.

    Raises:
        ValueError: if it is nowhere to be found, or damaged.
    """
    if options.synthetic_data in ("cpu", "host"):
        return Images(
            synthetic_split(info, info.train, seed), synthetic_split(info, info.test, seed)
        )
    if options.synthetic_data in ("ipu", "device"):
        # The device makes images; one byte asks for each.
        rng = np.random.default_rng(seed)
        return Images(*(_numbers(info, info.size(part), rng) for part in ("train", "test")))
    data = load(info.name, options.dataset_path)
    return Images(data.train, data.test)


def training_input(plan: RunPlan, images: Images) -> dict[str, Any]:
    """Return the arguments of `fit` that say what to train on."""
    options, batch, events = plan.options, plan.batch, plan.events
    steps = events.keras_epoch * batch.accumulation
    x, y = images.train
    # Keras would make an update of samples that are left over, or save them for the next epoch.
    divides = events.keras_epoch * batch.global_batch == len(x)
    if divides and not _is_random(plan):
        return {
            "x": _normalised(plan, x),
            "y": y,
            "batch_size": batch.micro_batch,
            "shuffle": options.shuffle,
        }
    return {"x": _batches(plan, images), "steps_per_epoch": steps, "shuffle": False}


def test_input(plan: RunPlan, images: Images) -> dict[str, Any]:
    """Return the arguments of `evaluate` that say what to validate on: all held-out images."""
    x, y = images.test
    if plan.options.synthetic_data in ("cpu", "host"):
        return {"x": TestBatches(plan, images)}
    return {"x": _normalised(plan, x), "y": y, "batch_size": plan.validation_batch}


class TestBatches(keras.utils.PyDataset):
    """Held-out images, one replica's batch at a time."""

    __test__ = False

    def __init__(self, plan: RunPlan, images: Images) -> None:
        super().__init__()
        self.plan = plan
        self.images, self.labels = images.test

    def __len__(self) -> int:
        return -(-len(self.labels) // self.plan.validation_batch)

    def __getitem__(self, number: int) -> Batch:
        size = self.plan.validation_batch
        part = slice(number * size, (number + 1) * size)
        return _normalised(self.plan, self.images[part]), np.ascontiguousarray(self.labels[part])


def _batches(plan: RunPlan, images: Images) -> Iterator[Batch]:
    info, options = plan.info, plan.options

    def transform(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Batch:
        on_host = not options.accelerator_side_preprocess
        if options.rand_augment and options.synthetic_data is None:
            x = rand_augment(x, options.rand_augment, rng)
        if _augments(plan) and info.flip and on_host:
            x = augment.random_flip(x, rng)
        x = _normalised(plan, x)
        if _augments(plan) and info.crop_padding:
            x = augment.random_crop(x, info.crop_padding, rng)
        if not plan.mixes_labels:
            return np.ascontiguousarray(x), y
        shares = np.eye(info.classes, dtype=np.float32)[y]
        # With both, each batch is mixed in one way or the other.
        if options.mixup and (not options.cutmix or rng.random() < 0.5):
            return augment.mixup(x, shares, options.mixup, rng)
        return augment.cutmix(x, shares, options.cutmix, rng)

    return endless_batches(
        *images.train,
        plan.batch.micro_batch,
        batches_per_epoch=plan.events.updates_per_epoch * plan.batch.micro_batches_per_update,
        shuffle=options.shuffle,
        seed=plan.seed,
        transform=transform,
    )


def _augments(plan: RunPlan) -> bool:
    return plan.options.augment and plan.options.synthetic_data is None


def _is_random(plan: RunPlan) -> bool:
    """Say whether batches are made one by one: images change, or are all the same one."""
    info, on_host = plan.info, not plan.options.accelerator_side_preprocess
    changes = bool(info.crop_padding) or (info.flip and on_host)
    if plan.options.synthetic_data in ("cpu", "host"):
        return True
    random = plan.mixes_labels or bool(plan.options.rand_augment)
    return (_augments(plan) and changes) or random


def _normalised(plan: RunPlan, x: np.ndarray) -> np.ndarray:
    """Return images as they are moved to the device."""
    options = plan.options
    if options.synthetic_data in ("ipu", "device"):
        return x
    if options.eight_bit_transfer:
        return augment.to_bytes(x)
    if options.accelerator_side_preprocess:
        return x.astype(np.float32)
    return augment.normalise(x, plan.info.normalisation)


def _numbers(info: DatasetInfo, size: int, rng: np.random.Generator) -> Split:
    return np.zeros((size, 1), np.uint8), rng.integers(0, info.classes, size, dtype=np.int32)
