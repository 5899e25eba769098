"""Strategies under which models run on the devices that were configured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal

import convoy
import jax
import jax.numpy as jnp
import keras
from convoy.engine.observer import NULL_OBSERVER
from convoy.ipu import system
from convoy.ipu.config import IPUConfig
from convoy.ipu.enums import ReduceOp, StochasticRoundingBehaviour
from convoy.ipu.keras.extension import extend
from convoy.ipu.reports import report_folder
from convoy.ipu.system import Applied
from convoy.report.files import new_folder
from convoy.report.recording import Recording

_current: ContextVar[IPUStrategyV1 | None] = ContextVar("convoy_ipu_strategy", default=None)

_ROUNDING: dict[StochasticRoundingBehaviour, Literal["off", "on", "replica_identical"]] = {
    StochasticRoundingBehaviour.OFF: "off",
    StochasticRoundingBehaviour.ON: "on",
    StochasticRoundingBehaviour.REPLICA_IDENTICAL_ONLY: "replica_identical",
}


class IPUStrategyV1:
    """Runs models on the devices of the configuration that is in force when its scope begins.

    A model that needs one device gets a replica on each. The gradients of replicas are added up,
    not averaged: `convoy.Strategy` does that, and so does `PopDistStrategy`.

    Args:
        ipu_device: the logical device.
        cpu_device: where initial values are computed; there is only one.
        enable_dataset_iterators: has no effect, as data sets are read by the engine.
        enable_keras_extensions: whether models made in the scope run on Convoy's engine. Without
            it they are plain Keras models.

    Example:
    ```python
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        model = keras.Model(inputs, outputs)
        model.compile("sgd", "categorical_crossentropy", steps_per_execution=100)
        model.fit(x, y, batch_size=64)
    ```
    """

    reduction: Literal["sum", "mean"] = "sum"
    """Of gradients over replicas."""

    takes_pipeline_stages = True
    """Whether `PipelineStage` may be used in its scope."""

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        del cpu_device, enable_dataset_iterators
        system.devices_of(ipu_device)
        self._ipu_device = ipu_device
        self._enable_keras_extensions = enable_keras_extensions
        self._native: tuple[Applied, Engine] | None = None

    @property
    def num_replicas_in_sync(self) -> int:
        """Always 1: Keras is not to divide the loss by the number of replicas."""
        return 1

    @property
    def supports_loss_scaling(self) -> bool:
        """Always true."""
        return True

    @contextlib.contextmanager
    def scope(self) -> Iterator[IPUStrategyV1]:
        """Take in every `keras.Model` that this thread makes in the block."""
        token = _current.set(self)
        try:
            if self._enable_keras_extensions:
                with self._engine().scope():
                    yield self
            else:
                yield self
        finally:
            _current.reset(token)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Run a function of arrays on the devices, as one program.

        Returns:
            What it returns on the first replica.

        Raises:
            TypeError: if an argument is of type float64.
        """
        from convoy.ipu.program import run  # it asks here for the devices

        del options
        for leaf in jax.tree.leaves((args, kwargs)):
            if getattr(leaf, "dtype", None) == "float64":
                raise TypeError(
                    "An argument of run() is of type float64, which these devices do not compute "
                    "with. Pass float32."
                )
        return run(
            lambda *inputs: fn(*inputs, **(kwargs or {})),
            args,
            self.devices,
            origin=fn,
            reduction=self.reduction,
        )

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Return the sum or the mean of a value over replicas, inside of a program.

        Args:
            reduce_op: `"SUM"` or `"MEAN"`, or TensorFlow's word for it.
            value: of this replica.
            axis: of the value, which is reduced first; `None` is none.

        Raises:
            ValueError: if the operation is another one.
        """
        from convoy.ipu.ops import cross_replica_ops  # it imports what models can do

        adds = ReduceOp.parse(reduce_op) is ReduceOp.SUM
        if axis is not None:
            value = jnp.sum(value, axis) if adds else jnp.mean(value, axis)
        if adds:
            return cross_replica_ops.cross_replica_sum(value)
        return cross_replica_ops.cross_replica_mean(value)

    def experimental_run_v2(self, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise RuntimeError("experimental_run_v2() is gone. Call run() with the same arguments.")

    @property
    def devices(self) -> tuple[Any, ...]:
        """The devices of the logical device, as configured now."""
        return system.devices_of(self._ipu_device)

    def _engine(self) -> Engine:
        applied = system.in_force()
        if self._native is None or self._native[0] != applied:
            self._native = applied, Engine(applied.config, self.devices, self.reduction)
        return self._native[1]


IPUStrategy = IPUStrategyV1


class Engine(convoy.Strategy):
    """A strategy of Convoy's, whose models have Graphcore's methods too."""

    def __init__(
        self,
        config: IPUConfig,
        devices: tuple[Any, ...],
        reduction: Literal["sum", "mean"],
        loss_scale: convoy.AutomaticLossScale | None = None,
    ) -> None:
        super().__init__(
            devices=devices, reduction=reduction, loss_scale=loss_scale, **settings(config)
        )
        self.config, self.loss_scale = config, loss_scale
        self.reduction: Literal["sum", "mean"] = reduction
        self.allow_recompute: bool = config.allow_recompute
        self.on_io_tiles: bool = config.io_tiles.place_ops_on_io_tiles
        self.folder = report_folder(config)
        """Where a report of its models goes, if one was asked for."""

    def adopt(self, new: keras.Model) -> None:
        if self.folder is not None and self.observer is NULL_OBSERVER:
            self.record(new_folder(self.folder))
        super().adopt(new)
        extend(new, self)

    def changed(
        self,
        *,
        count: int | None = None,
        reduction: Literal["sum", "mean"] | None = None,
        loss_scale: convoy.AutomaticLossScale | None = None,
    ) -> Engine:
        """Return the same strategy on the first devices, or with another way with gradients."""
        changed = Engine(
            self.config,
            self.devices[:count],
            reduction or self.reduction,
            loss_scale or self.loss_scale,
        )
        if isinstance(self.observer, Recording):
            self.observer.observe(changed)
        return changed


def settings(config: IPUConfig) -> dict[str, Any]:
    """Return the arguments of `convoy.Strategy` that a configuration stands for."""
    bucket = config.optimizations.maximum_cross_replica_sum_buffer_size
    return {
        "batch_norm_group": config.norms.experimental.distributed_batch_norm_replica_group_size,
        "stochastic_rounding": _ROUNDING[system.stochastic_rounding(config)],
        **({"reduction_bucket": bucket} if bucket else {}),
    }


def current() -> IPUStrategyV1 | None:
    """Return the strategy whose scope this thread is in."""
    return _current.get()
