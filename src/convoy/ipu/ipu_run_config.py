"""Run configurations of estimators: devices, checkpoints and logging."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from convoy.arguments import whole_number
from convoy.estimator import RunConfig as NativeRunConfig
from convoy.ipu import checks, notice
from convoy.ipu.config import IPUConfig
from convoy.ipu.environment import report_folder

DEFAULT_SECONDS = 600
# Larger than any number of checkpoints, so that none is removed.
ALL = 1 << 30


@dataclass(frozen=True)
class IPURunConfig:
    """Device options of an estimator.

    Attributes:
        iterations_per_loop: steps in one device call; for a pipeline, micro-batches.
        ipu_options: an `IPUConfig`, which the estimator applies.
        num_replicas: number of copies of the network (data parallelism).
        num_shards: devices per copy. The network of an `IPUEstimator` is split over them
            automatically.
        ordinal: index of the logical device.
        prefetch_depth: from 1 to 255; no effect.
        compile_summary: no effect.
        autosharding: no effect: a network is split whenever there are several shards.

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
            whole_number(name, getattr(self, name), "a positive whole number")
        checks.in_range("prefetch_depth", self.prefetch_depth, 1, 255)
        ignored = {"prefetch_depth": self.prefetch_depth, "compile_summary": self.compile_summary}
        notice.no_effect("IPURunConfig", ignored)
        self._check_devices()

    @property
    def devices(self) -> int:
        """Number of devices of all replicas."""
        return self.num_replicas * self.num_shards

    def _check_devices(self) -> None:
        options = self.ipu_options
        if options is None:
            if self.devices > 1:
                raise ValueError(
                    f"{self.devices} devices need ipu_options whose auto_select_ipus is "
                    f"{self.devices}. Pass an IPUConfig."
                )
            return
        checks.instance("ipu_options", options, IPUConfig, "an IPUConfig")
        selected = options.auto_select_ipus
        counts = [selected] if isinstance(selected, int) else list(selected)
        if not counts:
            return  # selected by index: checked when the configuration is applied
        if self.ordinal >= len(counts):
            raise ValueError(
                f"ordinal={self.ordinal}, but auto_select_ipus has {len(counts)} entries. Add one."
            )
        count = counts[self.ordinal]
        self.check_device_count(f"auto_select_ipus selects {count}", count)

    def check_device_count(self, selection: str, count: int) -> None:
        """Raise `ValueError` if another number of devices is selected than replicas need."""
        if count != self.devices:
            raise ValueError(
                f"num_replicas={self.num_replicas} x num_shards={self.num_shards} are "
                f"{self.devices} devices, but {selection}. Make them equal."
            )


@dataclass(frozen=True)
class RunConfig:
    """Run configuration of an estimator.

    Attributes:
        ipu_run_config: options of the devices.
        master: no effect, since there are no sessions.
        model_dir: folder of the checkpoints.
        tf_random_seed: random seed.
        save_summary_steps: steps between two values for TensorBoard; 0 or `None` writes none.
        save_checkpoints_steps: steps between two checkpoints.
        save_checkpoints_secs: seconds between two checkpoints; 600 if neither is given.
        keep_checkpoint_max: number of checkpoints to keep; 0 or `None` keeps all.
        log_step_count_steps: steps between two log lines; `None` logs nothing.
        train_distribute: must be `None`, since replicas are those of one process.
        eval_distribute: must be `None`.
        session_config: no effect.

    Raises:
        ValueError: if both intervals between checkpoints are given.
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
    train_distribute: object = None
    eval_distribute: object = None
    session_config: object = None

    def __post_init__(self) -> None:
        if self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            raise ValueError("Pass save_checkpoints_steps or save_checkpoints_secs, not both.")
        if self.train_distribute is not None or self.eval_distribute is not None:
            raise NotImplementedError("Pass num_replicas to IPURunConfig instead of a strategy.")
        if self.ipu_run_config is None:
            object.__setattr__(self, "ipu_run_config", IPURunConfig())
        ignored = {"master": self.master, "session_config": self.session_config}
        notice.no_effect("RunConfig", ignored)

    @property
    def ipu(self) -> IPURunConfig:
        """The options of the devices."""
        assert self.ipu_run_config is not None
        return self.ipu_run_config

    def replace(self, **changes: object) -> RunConfig:
        """Return a copy with changed attributes."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def native(self) -> NativeRunConfig:
        """Return the same configuration for Convoy's estimators, without a strategy."""
        every: int | str = f"{self.save_checkpoints_secs or DEFAULT_SECONDS}s"
        if self.save_checkpoints_steps is not None:
            every = self.save_checkpoints_steps
        options = self.ipu.ipu_options
        return NativeRunConfig(
            model_dir=self.model_dir,
            steps_per_execution=self.ipu.iterations_per_loop,
            stages=self.ipu.num_shards,
            checkpoint_every=every,
            keep=self.keep_checkpoint_max or ALL,
            log_every=self.log_step_count_steps,
            summary_every=self.save_summary_steps or None,
            seed=self.tf_random_seed,
            report=report_folder(None if options is None else options.compilation_poplar_options),
        )
