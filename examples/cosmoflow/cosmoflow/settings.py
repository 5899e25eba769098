"""Settings of a run: the sections of a YAML file, which flags override."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from convoy.configuration import (
    Configuration,
    Count,
    NotNegative,
    Option,
    Positive,
    Whole,
    WholeNotNegative,
    read,
)
from pydantic import BeforeValidator

Scaling = Literal["none", "linear", "sqrt"]

ExpandedPath = Annotated[Path, BeforeValidator(os.path.expandvars)]
"""A path in which environment variables are replaced by their values."""


@dataclass(frozen=True)
class Data(Configuration):
    """The section `data`.

    data:
        name: `"dummy"` for random volumes, or `"cosmo"` for record files.
        n_train: number of training samples.
        sample_shape: shape of a volume, with its channels.
        data_dir: folder of the folders `train` and `validation`.
        n_valid: number of validation samples; 0 disables validation.
        target_shape: number of targets, in a list.
        micro_batch_size: samples per replica and step.
        n_epochs: number of epochs.
        shard: whether each process trains on its own files.
        samples_per_file: number of records in a file.
        shuffle_train: whether the order of files differs in each epoch.
        shuffle_valid: must be false.
        apply_log: whether volumes are `log(x + 1)`, else `x` divided by its mean.
        subtract_mean: whether the mean of each volume is then subtracted.
        staged_files: whether files are first copied to a local disk.
        stage_dir: folder of the copies; by default that of temporary files.
        prefetch: number of batches prepared in advance.
        workers: number of processes that prepare batches; by default one for each core.
    """

    name: Literal["dummy", "cosmo"]
    n_train: Annotated[Count, Option()]
    sample_shape: tuple[Count, ...]
    data_dir: Annotated[ExpandedPath | None, Option()] = None
    n_valid: Annotated[WholeNotNegative, Option()] = 0
    target_shape: tuple[Count, ...] = (4,)
    micro_batch_size: Annotated[Count, Option()] = 1
    n_epochs: Annotated[Count, Option()] = 1
    shard: bool = True
    samples_per_file: Count = 1
    shuffle_train: bool = True
    shuffle_valid: bool = False
    apply_log: Annotated[bool, Option()] = False
    subtract_mean: Annotated[bool, Option()] = False
    staged_files: Annotated[bool, Option()] = False
    stage_dir: Annotated[ExpandedPath | None, Option()] = None
    prefetch: Annotated[Count, Option()] = 4
    workers: Annotated[WholeNotNegative | None, Option()] = None

    def __post_init__(self) -> None:
        if len(self.sample_shape) != 4:
            raise ValueError(
                f"sample_shape {list(self.sample_shape)} is not three sides and channels. Set for "
                "example [64, 64, 64, 4]."
            )
        if len(self.target_shape) != 1:
            raise ValueError(
                f"target_shape {list(self.target_shape)} is not a single number. Set for example "
                "[4]."
            )
        if self.name == "cosmo" and self.data_dir is None:
            raise ValueError("name cosmo needs data_dir. Set it, or pass --data-dir.")
        if self.shuffle_valid:
            raise ValueError(
                "shuffle_valid has no effect, since every validation reads all samples once. "
                "Remove it."
            )


@dataclass(frozen=True)
class Model(Configuration):
    """The section `model`.

    Attributes:
        name: name of the network.
        arguments: arguments of the network; in the section, they stand beside the name.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Optimizer(Configuration):
    """The section `optimizer`.

    optimizer:
        name: Keras's name of the optimizer.
        lr: learning rate before scaling, instead of `lr_schedule.base_lr`.
        lr_scaling: scaling of the learning rate, instead of `lr_schedule.scaling`.
        arguments: other arguments of the optimizer; in the section, they stand beside the name.
    """

    name: str
    lr: Annotated[Positive | None, Option()] = None
    lr_scaling: Scaling | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LearningRate(Configuration):
    """The section `lr_schedule`.

    Attributes:
        base_lr: learning rate before scaling.
        scaling: scaling with the global batch size.
        base_batch_size: batch size for `base_lr`; by default the micro-batch size.
        n_warmup_epochs: number of epochs in which the rate rises from `base_lr`.
        decay_schedule: factors of the rate, by the epoch after which they apply.
    """

    base_lr: Positive | None = None
    scaling: Scaling = "none"
    base_batch_size: Count | None = None
    n_warmup_epochs: WholeNotNegative = 0
    decay_schedule: dict[Whole, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Train(Configuration):
    """The section `train`.

    Attributes:
        loss: Keras's name of the loss.
        metrics: Keras's names of metrics.
        target_mae: validation MAE below which training ends.
        seed: seed of weights, dropout and the order of samples.
    """

    loss: str = "mse"
    metrics: tuple[str, ...] = ()
    target_mae: NotNegative | None = None
    seed: Whole = 0


@dataclass(frozen=True)
class Devices(Configuration):
    """The section `ipu_config`: data and pipeline parallelism, and precision.

    devices:
        num_ipus: number of replicas; in a launched run, that of the launch.
        iterations_per_loop: steps per device call, which never exceeds an epoch.
        gradient_accumulation: micro-batches per weight update and replica.
        stages: number of pipeline stages, each on its own device.
        pipeline_schedule: name of the pipeline schedule.
        activation_checkpointing: whether stages recompute activations in the backward pass.
        precision: compute and weight precision: `"32.32"`, `"16.32"`, `"16.16"`, `"bf16.32"` or
            `"bf16.16"`.
    """

    num_ipus: Annotated[Count, Option()] = 1
    iterations_per_loop: Annotated[Count, Option()] = 1
    gradient_accumulation: Annotated[Count, Option()] = 1
    stages: Annotated[Count, Option()] = 1
    pipeline_schedule: Annotated[str, Option()] = "1f1b"
    activation_checkpointing: Annotated[bool, Option()] = False
    precision: Annotated[str, Option()] = "32.32"


@dataclass(frozen=True)
class Settings(Configuration):
    """All settings of a run.

    run:
        data: the samples.
        model: the network.
        optimizer: the optimizer.
        output_dir: folder of the run's files.
        lr_schedule: learning rate over the run.
        train: loss, metrics and end of training.
        ipu_config: devices.
    """

    data: Data
    model: Model
    optimizer: Optimizer
    output_dir: Annotated[ExpandedPath, Option()] = Path("results")
    lr_schedule: LearningRate = LearningRate()
    train: Train = Train()
    ipu_config: Devices = Devices()

    def __post_init__(self) -> None:
        if self.learning_rate.base_lr is None:
            raise ValueError("optimizer.lr is missing. Set it, or lr_schedule.base_lr.")
        for name, expected, source in (
            ("input_shape", list(self.data.sample_shape), "sample_shape"),
            ("target_size", self.data.target_shape[0], "target_shape"),
        ):
            given = self.model.arguments.get(name, expected)
            if given != expected:
                raise ValueError(
                    f"model.{name} {given} differs from data.{source} {expected}. Remove it, or "
                    "set both to the same."
                )

    @property
    def learning_rate(self) -> LearningRate:
        """`lr_schedule`, with the values that `optimizer` overrides."""
        return replace(
            self.lr_schedule,
            base_lr=self.optimizer.lr or self.lr_schedule.base_lr,
            scaling=self.optimizer.lr_scaling or self.lr_schedule.scaling,
        )

    @property
    def network_arguments(self) -> dict[str, Any]:
        """Arguments of the network, with the shapes of the data."""
        shapes = {"input_shape": self.data.sample_shape, "target_size": self.data.target_shape[0]}
        return self.model.arguments | shapes


def read_settings(tree: Mapping[str, Any], where: str = "") -> Settings:
    """Return the settings in the sections of a YAML file.

    Args:
        tree: values by section; sections without a value are ignored.
        where: beginning of error messages, such as the name of the file.

    Raises:
        ConfigurationError: if a key is unknown or missing, or a value is invalid.
    """
    sections = {name: section for name, section in tree.items() if section is not None}
    for name, schema in (("model", Model), ("optimizer", Optimizer)):
        section = sections.get(name)
        if isinstance(section, Mapping):
            known = {f.name: section[f.name] for f in fields(schema) if f.name in section}
            others = {key: value for key, value in section.items() if key not in known}
            sections[name] = known | {"arguments": others}
    return read(Settings, sections, where)
