"""What a run is told: a YAML file, and flags that override it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from cosmoflow.sections import at_least, check_keys, mapping, one_of, read_section

DATA_SETS = ("dummy", "cosmo")
SCALINGS = ("none", "linear", "sqrt")


@dataclass(frozen=True)
class Data:
    """What is trained on.

    Attributes:
        name: `"dummy"`, random volumes; or `"cosmo"`, record files.
        data_dir: where the folders `train` and `validation` are.
        n_train: samples to train on.
        n_valid: samples to validate on; 0 does not validate.
        sample_shape: of a volume, with its channels.
        target_shape: how many targets, in a list.
        micro_batch_size: samples that a replica takes at a time.
        n_epochs: passes through the data.
        shard: whether each process has files of its own to train on.
        samples_per_file: records of a file.
        shuffle_train: whether each epoch has an order of its own.
        shuffle_valid: must be false: all validation samples are read, in their order.
        apply_log: whether volumes are `log(x + 1)`, else `x` over its mean.
        subtract_mean: whether a volume's mean is then taken from it.
        staged_files: whether files are first copied to a disk of this host.
        stage_dir: where to; by default the folder for temporary files.
        prefetch: batches that are made ahead.
        workers: processes that make them; by default one for each core.
    """

    name: str
    n_train: int
    sample_shape: tuple[int, ...]
    data_dir: str | None = None
    n_valid: int = 0
    target_shape: tuple[int, ...] = (4,)
    micro_batch_size: int = 1
    n_epochs: int = 1
    shard: bool = True
    samples_per_file: int = 1
    shuffle_train: bool = True
    shuffle_valid: bool = False
    apply_log: bool = False
    subtract_mean: bool = False
    staged_files: bool = False
    stage_dir: str | None = None
    prefetch: int = 4
    workers: int | None = None

    def __post_init__(self) -> None:
        one_of("data.name", self.name, DATA_SETS)
        for name in ("n_train", "micro_batch_size", "n_epochs", "samples_per_file", "prefetch"):
            at_least("data", name, getattr(self, name), 1)
        at_least("data", "n_valid", self.n_valid, 0)
        if self.workers is not None:
            at_least("data", "workers", self.workers, 0)
        if len(self.sample_shape) != 4 or min(self.sample_shape) < 1:
            raise ValueError(
                f"data.sample_shape {list(self.sample_shape)} is not three sides and channels, as "
                "[64, 64, 64, 4] is."
            )
        if len(self.target_shape) != 1 or self.target_shape[0] < 1:
            raise ValueError(f"data.target_shape {list(self.target_shape)} is not one number.")
        if self.name == "cosmo" and self.data_dir is None:
            raise ValueError("data.name cosmo needs data.data_dir, or --data-dir.")
        if self.shuffle_valid:
            raise ValueError(
                "data.shuffle_valid: all validation samples are read once, so that their order "
                "changes nothing. Leave it out."
            )


@dataclass(frozen=True)
class LearningRate:
    """The learning rate over a run.

    Attributes:
        base_lr: before it is scaled.
        scaling: by the batch: `"none"`, `"linear"` or `"sqrt"`.
        base_batch_size: that `base_lr` is for; by default the batch of one replica.
        n_warmup_epochs: in which it rises from `base_lr`.
        decay_schedule: by what it is multiplied after so many epochs.
    """

    base_lr: float
    scaling: str = "none"
    base_batch_size: int | None = None
    n_warmup_epochs: int = 0
    decay_schedule: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of("lr_scaling", self.scaling, SCALINGS)
        at_least("lr_schedule", "n_warmup_epochs", self.n_warmup_epochs, 0)
        if self.base_batch_size is not None:
            at_least("lr_schedule", "base_batch_size", self.base_batch_size, 1)
        if self.base_lr <= 0:
            raise ValueError(f"The learning rate {self.base_lr} is not more than 0.")


@dataclass(frozen=True)
class Train:
    """What is made smaller, what is measured, and when to stop.

    Attributes:
        loss: as Keras calls it.
        metrics: as Keras calls them.
        target_mae: the validation MAE at which training ends.
        seed: of all that chance decides.
    """

    loss: str = "mse"
    metrics: tuple[str, ...] = ()
    target_mae: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Devices:
    """How the run is divided over devices.

    Attributes:
        num_ipus: replicas; in a launched run, those of the launch.
        iterations_per_loop: steps in one device call; it ends with an epoch in any case.
        gradient_accumulation: micro-batches per weight update and replica.
        stages: into how many stages, each on a device of its own, the network is cut.
        pipeline_schedule: of the stages.
        recompute: whether stages compute activations again instead of keeping them.
        precision: `"32.32"`, `"16.32"`, `"16.16"`, `"bf16.32"` or `"bf16.16"`.
    """

    num_ipus: int = 1
    iterations_per_loop: int = 1
    gradient_accumulation: int = 1
    stages: int = 1
    pipeline_schedule: str = "1f1b"
    recompute: bool = False
    precision: str = "32.32"

    def __post_init__(self) -> None:
        for name in ("num_ipus", "iterations_per_loop", "gradient_accumulation", "stages"):
            at_least("ipu_config", name, getattr(self, name), 1)


@dataclass(frozen=True)
class Settings:
    """All that a run is told.

    Attributes:
        output_dir: of the run's files.
        data: what is trained on.
        model: the network's name, and its arguments.
        optimizer: as Keras calls it, and its arguments.
        learning_rate: over the run.
        train: what is made smaller.
        devices: how the run is divided.
    """

    output_dir: Path
    data: Data
    model: dict[str, Any]
    optimizer: dict[str, Any]
    learning_rate: LearningRate
    train: Train
    devices: Devices

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Understand what a YAML file says.

        Raises:
            ValueError: if something is unknown, missing, or of another kind.
        """
        known = ("output_dir", "data", "model", "optimizer", "lr_schedule", "train", "ipu_config")
        check_keys("", tree, known)
        parts = {name: mapping(name, tree.get(name) or {}) for name in known[1:]}
        optimizer = dict(parts["optimizer"])
        if "name" not in parts["model"] or "name" not in optimizer:
            missing = "optimizer" if "name" in parts["model"] else "model"
            raise ValueError(f"{missing}.name is missing.")
        rate = {"base_lr": optimizer.pop("lr", None), "scaling": optimizer.pop("lr_scaling", None)}
        rate = {name: value for name, value in rate.items() if value is not None}
        if "base_lr" not in rate | parts["lr_schedule"]:
            raise ValueError("optimizer.lr is missing.")
        if not isinstance(rate.get("base_lr", 1.0), (int, float)):
            raise ValueError(f"optimizer.lr: {rate['base_lr']!r} is not a number.")
        data = read_section(Data, "data", parts["data"])
        settings = cls(
            Path(os.path.expandvars(str(tree.get("output_dir", "results")))),
            data,
            {"input_shape": data.sample_shape, "target_size": data.target_shape[0]}
            | parts["model"],
            optimizer,
            read_section(LearningRate, "lr_schedule", parts["lr_schedule"] | rate),
            read_section(Train, "train", parts["train"]),
            read_section(Devices, "ipu_config", parts["ipu_config"]),
        )
        settings._check_model()
        return settings

    def _check_model(self) -> None:
        shape, targets = self.model["input_shape"], self.model["target_size"]
        shape = list(shape) if isinstance(shape, (list, tuple)) else shape
        if shape != list(self.data.sample_shape):
            raise ValueError(
                f"model.input_shape {shape} is not data.sample_shape "
                f"{list(self.data.sample_shape)}. Leave it out, or make them the same."
            )
        if targets != self.data.target_shape[0]:
            raise ValueError(
                f"model.target_size {targets} is not data.target_shape "
                f"{list(self.data.target_shape)}. Leave it out, or make them the same."
            )
