"""How estimators run on the devices that are configured."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from convoy.estimator.config import RunConfig as NativeRunConfig
from convoy.ipu import notice
from convoy.ipu.config import IPUConfig
from convoy.ipu.reports import report_folder

DEFAULT_SECONDS = 600
# So many that none is ever removed.
ALL = 1 << 30


@dataclass(frozen=True)
class IPURunConfig:
    """Options of the devices.

    Attributes:
        iterations_per_loop: steps in one device call; for a pipeline, micro-batches.
        ipu_options: an `IPUConfig`, which the estimator applies.
        num_replicas: copies of the network, each with its own share of the data.
        num_shards: devices of one copy. The network of an `IPUEstimator` is divided over them by
            itself.
        ordinal: the number of the logical device.
        prefetch_depth: from 1 to 255; checked, but without effect.
        compile_summary: has no effect.
        autosharding: has no effect: a network is divided whenever there are shards.

    Raises:
        TypeError: if the options are not an `IPUConfig`.
        ValueError: if numbers do not fit together.
    """

    iterations_per_loop: int = 1
    ipu_options: IPUConfig | None = None
    num_replicas: int = 1
    num_shards: int = 1
    ordinal: int = 0
    prefetch_depth: int | None = None
    compile_summary: bool = False
    autosharding: bool = False

    def __post_init__(self) -> None:
        for name in ("iterations_per_loop", "num_replicas", "num_shards"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r} is not a number from 1. Pass 1 or more.")
        if self.prefetch_depth is not None and not 1 <= self.prefetch_depth <= 255:
            raise ValueError(f"prefetch_depth={self.prefetch_depth} is not from 1 to 255.")
        ignored = ("prefetch_depth", "compile_summary")
        notice.without_effect([name for name in ignored if getattr(self, name)], "IPURunConfig")
        self._check_devices()

    @property
    def devices(self) -> int:
        """How many devices all replicas take."""
        return self.num_replicas * self.num_shards

    def _check_devices(self) -> None:
        options = self.ipu_options
        if options is None:
            if self.devices > 1:
                raise ValueError(
                    f"num_replicas={self.num_replicas} and num_shards={self.num_shards} need "
                    f"ipu_options whose auto_select_ipus is {self.devices}. Pass an IPUConfig."
                )
            return
        if not isinstance(options, IPUConfig):
            raise TypeError(f"ipu_options is {type(options).__name__}, not an IPUConfig.")
        selected = options.auto_select_ipus
        counts = [selected] if isinstance(selected, int) else list(selected)
        if not counts:
            return  # selected by number: looked at when they are applied
        if self.ordinal >= len(counts):
            raise ValueError(
                f"ordinal={self.ordinal}, but auto_select_ipus has {len(counts)} logical devices."
            )
        if counts[self.ordinal] != self.devices:
            raise ValueError(
                f"num_replicas={self.num_replicas} x num_shards={self.num_shards} are "
                f"{self.devices} devices, but auto_select_ipus selects {counts[self.ordinal]}. "
                "Make them equal."
            )


@dataclass(frozen=True)
class RunConfig:
    """How an estimator runs.

    Attributes:
        ipu_run_config: options of the devices.
        master: has no effect, as there are no sessions.
        model_dir: where checkpoints are.
        tf_random_seed: from which random numbers begin.
        save_summary_steps: steps between two values for TensorBoard; 0 or `None` writes none.
        save_checkpoints_steps: steps between two checkpoints.
        save_checkpoints_secs: or seconds; 600 if neither is given.
        keep_checkpoint_max: how many are kept; 0 or `None` is all.
        log_step_count_steps: steps between two lines of the log; `None` is quiet.
        train_distribute: must be `None`, as replicas are those of one process.
        eval_distribute: must be `None`.
        session_config: has no effect.

    Raises:
        ValueError: if both distances between checkpoints are given.
        NotImplementedError: if a strategy is given.
    """

    ipu_run_config: IPURunConfig | None = None
    master: str | None = None
    model_dir: str | os.PathLike[str] | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    log_step_count_steps: int | None = 100
    train_distribute: Any = None
    eval_distribute: Any = None
    session_config: Any = None

    def __post_init__(self) -> None:
        if self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            raise ValueError(
                "Both save_checkpoints_steps and save_checkpoints_secs were passed. Pass one."
            )
        if self.train_distribute is not None or self.eval_distribute is not None:
            raise NotImplementedError(
                "train_distribute and eval_distribute: replicas are those of one process. Pass "
                "num_replicas to IPURunConfig."
            )
        if self.ipu_run_config is None:
            object.__setattr__(self, "ipu_run_config", IPURunConfig())
        ignored = ("master", "session_config")
        notice.without_effect([name for name in ignored if getattr(self, name)], "RunConfig")

    @property
    def ipu(self) -> IPURunConfig:
        """The options of the devices."""
        assert self.ipu_run_config is not None
        return self.ipu_run_config

    def replace(self, **changes: Any) -> RunConfig:
        """Return the same with some changes."""
        return dataclasses.replace(self, **changes)

    def native(self) -> NativeRunConfig:
        """Return the same in Convoy's words, but for the strategy and the stages."""
        every: int | str = f"{self.save_checkpoints_secs or DEFAULT_SECONDS}s"
        if self.save_checkpoints_steps is not None:
            every = self.save_checkpoints_steps
        return NativeRunConfig(
            model_dir=self.model_dir,
            steps_per_execution=self.ipu.iterations_per_loop,
            checkpoint_every=every,
            keep=self.keep_checkpoint_max or ALL,
            log_every=self.log_step_count_steps,
            summary_every=self.save_summary_steps or None,
            seed=self.tf_random_seed,
            report=report_folder(self.ipu.ipu_options),
        )
