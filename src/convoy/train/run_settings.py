"""Settings of a run: checked options, and the numbers derived from them."""

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from convoy import compile_target, configuration, devices, distributed
from convoy import precision as precisions
from convoy.arguments import require_package
from convoy.batch_config import BatchConfig
from convoy.configuration import check, flag_name
from convoy.data.catalog import CHANNELS, DATASETS, DatasetInfo
from convoy.data.image_folder import FOLDER, find_image_folder
from convoy.pipeline.schedules import check_mapping
from convoy.train.flags import Options
from convoy.train.host_events import HostEvents, make_host_events
from convoy.train.normalization import check_norm_layer
from convoy.units import format_count

WANDB_PARAMS = {"run_name": "wandb_run_name", "tags": "wandb_tags"}
"""The fields of `Options` by the keys of `--wandb-params`."""
# Fraction of the images that an epoch may leave out without a message.
MAX_LEFT_OUT = 0.05
AUTO = "auto"
"""Value of `--pipeline-splits` that splits the model by the costs of its layers."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run.

    Attributes:
        options: consistent options.
        info: description of the dataset.
        batch: batch sizes.
        stages: number of pipeline stages; 1 is no pipeline.
        devices_per_replica: number of devices of each replica.
        events: intervals of log lines and checkpoints.
        notes: messages for the user, a line each.
    """

    options: Options
    info: DatasetInfo
    batch: BatchConfig
    stages: int
    devices_per_replica: int
    events: HostEvents
    notes: tuple[str, ...]

    @property
    def devices(self) -> int:
        return self.batch.replicas * self.devices_per_replica

    @property
    def in_pipeline(self) -> bool:
        """Whether stages run on different devices; on one device the model is not split."""
        return self.devices_per_replica > 1

    @property
    def seed(self) -> int:
        return self.options.seed or 0

    @property
    def mixes_labels(self) -> bool:
        return bool(self.options.mixup or self.options.cutmix)

    @property
    def steps_per_execution(self) -> int:
        return self.events.per_call * self.batch.gradient_accumulation

    @property
    def validation_batch(self) -> int:
        return self.options.validation_micro_batch_size or self.options.micro_batch_size

    @property
    def validates_in_stages(self) -> bool:
        return self.options.pipeline_validation_model and self.in_pipeline

    @property
    def validation_replicas(self) -> int:
        default = self.batch.replicas if self.validates_in_stages else self.devices
        return self.options.validation_num_replicas or default

    @property
    def validation_devices(self) -> int:
        return self.validation_replicas * (
            self.devices_per_replica if self.validates_in_stages else 1
        )


def make_run_settings(options: Options, training_samples: int | None = None) -> RunSettings:
    """Check options, and compute the numbers derived from them.

    Args:
        options: options of the command line.
        training_samples: number of training samples; by default that of the complete dataset.

    Raises:
        ValueError: if options contradict each other.
    """
    notes: list[str] = []
    check_options(options)
    options = _consistent(options, notes)
    info = dataset_info(options)
    if options.dataset == FOLDER:
        # The recipe in the run's folder holds the classes, so that they keep their labels.
        options = replace(options, classes=list(info.class_names))
    stages, devices_per_replica = stages_and_devices(options)
    _check_devices(options, stages, devices_per_replica)
    batch = batch_config(options, notes)
    samples = info.train if training_samples is None else training_samples
    updates = options.weight_updates_per_epoch
    if updates < 0:
        updates = batch.updates_per_epoch(samples)
    if updates < 1:
        raise ValueError(
            f"{format_count(samples, 'image')} cannot fill a weight update of "
            f"{batch.global_batch}: --batch-size {batch.micro_batch} x "
            f"{format_count(batch.replicas, 'replica')} x {batch.gradient_accumulation} "
            "accumulated. Make one of them smaller, such as --batch-size."
        )
    events = make_host_events(options, updates)
    if options.training:
        notes += events.warnings
        left_out = samples % batch.global_batch
        if options.weight_updates_per_epoch < 0 and left_out > MAX_LEFT_OUT * samples:
            notes.append(
                f"Each epoch leaves out {left_out} of {format_count(samples, 'image')}, because a "
                f"weight update takes {batch.global_batch}. Pass another --batch-size to use more."
            )
    return RunSettings(options, info, batch, stages, devices_per_replica, events, tuple(notes))


def check_options(options: Options) -> None:
    """Check options, without the dataset.

    Raises:
        ValueError: if one is not valid, or some contradict each other.
    """
    check(options)
    if not 0 <= options.ema < 1:
        raise ValueError(
            f"--ema {options.ema}: pass a momentum from 0 to less than 1, such as 0.999."
        )
    if options.weight_updates_per_epoch == 0:
        raise ValueError("--weight-updates-per-epoch 0: pass 1 or more, or -1 for all of the data.")
    if options.gradient_accumulation is not None and options.global_batch_size is not None:
        raise ValueError(
            "--gradient-accumulation and --global-batch-size were both given; one follows "
            "from the other. Pass one of them."
        )
    if options.compile_only and not options.training:
        raise ValueError("--compile-only compiles the training; leave --training False out.")
    if not options.training and not options.validation:
        raise ValueError("--training False --validation False leaves nothing to do. Leave one out.")
    if options.checkpoints is False and options.ckpts_per_epoch:
        raise ValueError(
            f"--checkpoints False writes none, but --ckpts-per-epoch is {options.ckpts_per_epoch}. "
            "Pass one of them."
        )
    if options.ckpt_all_instances and (
        options.checkpoints is False or options.ckpts_per_epoch == 0
    ):
        raise ValueError("--ckpt-all-instances: the run writes no checkpoints. Leave it out.")
    if unknown := sorted({*(options.wandb_params or {})} - {*WANDB_PARAMS}):
        raise ValueError(
            f"--wandb-params: {unknown[0]!r} is unknown. Pass {' and '.join(WANDB_PARAMS)}."
        )
    check_norm_layer(options.norm_layer)
    _check_preprocessing(options)


def _check_preprocessing(options: Options) -> None:
    for name in ("eight_bit_transfer", "random_erasing"):
        if getattr(options, name) and not options.accelerator_side_preprocess:
            raise ValueError(
                f"{flag_name(name)} needs images that the host has not normalised. Pass "
                "--accelerator-side-preprocess too."
            )
    if options.validation_views > 1 and options.synthetic_data == "device":
        raise ValueError(
            f"--validation-views {options.validation_views}: pass 1, because --synthetic-data "
            f"{options.synthetic_data} generates each image only once."
        )
    if options.rand_augment:
        require_package("PIL", "--rand-augment", "pillow", "images")
    if options.eight_bit_transfer and options.mixup:
        raise ValueError("--mixup converts bytes to floats; leave --eight-bit-transfer out.")


def dataset_info(options: Options, *, count: bool = True) -> DatasetInfo:
    """Return the description of the dataset, with the preprocessing of the options.

    Args:
        options: options of the run.
        count: whether the images of `--dataset folder` are counted. Otherwise the folder is not
            needed if the options name the classes.

    Raises:
        ValueError: if the images are not found, or do not have the channels that options need.
    """
    info = _folder_info(options, count) if options.dataset == FOLDER else DATASETS[options.dataset]
    if (padding := options.crop_padding) is not None:
        if padding >= (size := min(info.shape[:2])):
            raise ValueError(
                f"--crop-padding {padding}: pass less than the {size} pixels of an image."
            )
        info = replace(info, crop_padding=padding)
    if options.normalisation is None:
        return info
    if options.normalisation in CHANNELS and info.shape[-1] != 3:
        raise ValueError(
            f"--normalisation {options.normalisation} is for images of 3 channels, but those of "
            f"{info.name} have {info.shape[-1]}. Pass scale or standardise."
        )
    return replace(info, normalisation=options.normalisation)


def _folder_info(options: Options, count: bool) -> DatasetInfo:
    classes: Sequence[str] = options.classes or ()
    train = test = 0
    if count or not classes:
        path = Path(options.dataset_path)
        found = find_image_folder(path, options.validation_split, options.classes)
        classes, train, test = found.classes, len(found.train), len(found.test)
    shape = (options.image_size, options.image_size, 3)
    names = tuple(classes)
    return DatasetInfo(
        FOLDER, train, test, shape, len(names), "imagenet", flip=True, class_names=names
    )


def count_stages(splits: list[str]) -> int:
    """Return the number of stages of `--pipeline-splits`.

    Raises:
        ValueError: if it is `auto` without a number of stages.
    """
    if not splits or splits[0] != AUTO:
        return len(splits) + 1
    if len(splits) != 2 or not splits[1].isdecimal() or int(splits[1]) < 2:
        raise ValueError(
            f"--pipeline-splits {' '.join(splits)}: pass auto and a number of stages, 2 or more."
        )
    return int(splits[1])


def stages_and_devices(options: Options) -> tuple[int, int]:
    """Return the number of stages, and of devices per replica.

    Raises:
        ValueError: if stages and devices do not fit together.
    """
    stages, mapping = count_stages(options.pipeline_splits), options.device_mapping
    if options.activation_checkpointing and stages == 1:
        raise ValueError("--activation-checkpointing is for stages. Pass --pipeline-splits too.")
    option = f"--device-mapping {' '.join(map(str, mapping or []))}"
    return stages, max(check_mapping(mapping, stages, option)) + 1


def _check_devices(options: Options, stages: int, devices_per_replica: int) -> None:
    group = options.batch_norm_group
    if group > 1 and devices_per_replica > 1:
        raise ValueError(
            f"--batch-norm-group {group} needs replicas of one device, but {stages} stages "
            f"take {devices_per_replica}. Leave one of the flags out."
        )
    if options.shard and devices_per_replica > 1:
        raise ValueError(
            f"--shard {options.shard} is not needed with --pipeline-splits: each device already "
            "stores only the state of its stages. Leave one of them out."
        )
    if options.num_replicas % group:
        raise ValueError(
            f"--batch-norm-group {group} does not divide "
            f"{format_count(options.num_replicas, 'replica')}. Pass a divisor."
        )


def batch_config(options: Options, notes: list[str]) -> BatchConfig:
    """Return the batch sizes of options, and append messages for the user to `notes`."""
    micro, replicas = options.micro_batch_size, options.num_replicas
    if options.global_batch_size is None:
        return BatchConfig(micro, replicas, options.gradient_accumulation or 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batch = BatchConfig.of_global(options.global_batch_size, micro, replicas)
    notes += [str(warning.message) for warning in caught]
    return batch


def _consistent(options: Options, notes: list[str]) -> Options:
    """Resolve conflicts and automatic choices, with a note for each, and draw a missing seed."""
    changes: dict[str, Any] = {}
    if options.deterministic and options.shuffle:
        notes.append("--deterministic turns --shuffle off.")
        changes["shuffle"] = False
    if options.seed is None:
        # The recipe in the run's folder holds the seed, so that it repeats the run.
        changes["seed"] = draw_seed()
    if options.checkpoints is False:
        changes["ckpts_per_epoch"] = Fraction(0)
    for key, value in (options.wandb_params or {}).items():
        changes[WANDB_PARAMS[key]] = getattr(options, WANDB_PARAMS[key]) or value
    if options.precision == precisions.AUTO:
        # The recipe contains the choice, so that the run resumes with the same precision on any
        # machine.
        found = devices.find_precision(options.precision, compile_target.default_device())
        notes.append(f"--precision auto is {found.policy} here.")
        changes["precision"] = found.policy
    if ignored := _without_effect(options):
        notes.append(f"Without effect here: {'; '.join(ignored)}.")
    return replace(options, **changes)


def draw_seed() -> int:
    """Return a seed for a run without one."""
    return random.SystemRandom().randrange(2**31)


def _without_effect(options: Options) -> list[str]:
    """Return the flags that were set and have no effect, grouped by their reason."""
    defaults, reasons = type(options)(), dict[str, list[str]]()
    for name, option in configuration.options(type(options)).items():
        if option.no_effect and getattr(options, name) != getattr(defaults, name):
            reasons.setdefault(option.no_effect, []).append(flag_name(name))
    if not options.pipeline_splits:
        names = [
            flag_name(name)
            for name in ("pipeline_schedule", "pipeline_validation_model")
            if getattr(options, name) != getattr(defaults, name)
        ]
        if names:
            reasons["there are no stages without --pipeline-splits"] = names
    if options.ckpt_all_instances and distributed.count() == 1:
        reasons["there is one process"] = ["--ckpt-all-instances"]
    return [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]
