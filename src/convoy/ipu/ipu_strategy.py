"""`IPUStrategy`: runs models on the configured devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, NoReturn

import convoy
import jax
import jax.numpy as jnp
import keras
from convoy import AutomaticLossScale
from convoy.context import bound
from convoy.engine.observer import NULL_OBSERVER
from convoy.engine.step.all_reduce import Reduction
from convoy.ipu import config, program
from convoy.ipu.config import Applied, IPUConfig
from convoy.ipu.enums import ReduceOp, StochasticRoundingBehaviour
from convoy.ipu.environment import report_folder
from convoy.ipu.keras.extension import extend
from convoy.ipu.ops import cross_replica_ops
from convoy.report.files import new_folder
from convoy.report.recording import Recording
from convoy.types import PyTree

_current: ContextVar[IPUStrategyV1 | None] = ContextVar("convoy_ipu_strategy", default=None)

_ROUNDING: dict[StochasticRoundingBehaviour, Literal["off", "on", "replica_identical"]] = {
    StochasticRoundingBehaviour.OFF: "off",
    StochasticRoundingBehaviour.ON: "on",
    StochasticRoundingBehaviour.REPLICA_IDENTICAL_ONLY: "replica_identical",
}


class IPUStrategyV1:
    """Runs models on the devices of the configuration that is applied when its scope begins.

    A model that needs one device gets a replica on each device (data parallelism). The gradients
    of replicas are summed; `convoy.Strategy` and `PopDistStrategy` average them.

    Args:
        ipu_device: name of the logical device.
        cpu_device: no effect, since there is one host.
        enable_dataset_iterators: no effect, since the engine reads datasets.
        enable_keras_extensions: whether models made in the scope run on Convoy's engine. Otherwise
            they are plain Keras models.

    Example:
    ```python
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        model = keras.Model(inputs, outputs)
        model.compile("sgd", "categorical_crossentropy", steps_per_execution=100)
        model.fit(x, y, batch_size=64)
    ```
    """

    reduction: Reduction = "sum"
    """Reduction of gradients over replicas."""

    takes_pipeline_stages = True
    """Whether its scope supports `PipelineStage`."""

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        config.devices_of(ipu_device)
        self._ipu_device = ipu_device
        self._enable_keras_extensions = enable_keras_extensions
        self._native: tuple[Applied, Engine] | None = None

    @property
    def num_replicas_in_sync(self) -> int:
        """Always 1, so that Keras does not divide the loss by the number of replicas."""
        return 1

    @property
    def supports_loss_scaling(self) -> bool:
        """Always true."""
        return True

    @contextmanager
    def scope(self) -> Iterator[IPUStrategyV1]:
        """Prepare every `keras.Model` that this thread makes in the block."""
        with bound(_current, self):
            if not self._enable_keras_extensions:
                yield self
                return
            with self._engine().scope():
                yield self

    def run(
        self,
        fn: Callable[..., PyTree],
        args: tuple = (),
        kwargs: dict[str, PyTree] | None = None,
        options: object = None,
    ) -> PyTree:
        """Run a function of arrays on the devices, as one program.

        Returns:
            The result on the first replica.

        Raises:
            TypeError: if an argument is of type float64.
        """
        for leaf in jax.tree.leaves((args, kwargs)):
            if getattr(leaf, "dtype", None) == "float64":
                raise TypeError("An argument of run() is of type float64. Pass float32.")
        function = partial(fn, **(kwargs or {}))
        return program.run(function, args, self.devices, fn, self.reduction)

    def reduce(self, reduce_op: object, value: PyTree, axis: int | None = None) -> PyTree:
        """Return the sum or the mean of a value over replicas, inside a program.

        Args:
            reduce_op: `"SUM"` or `"MEAN"`, or TensorFlow's member for it.
            value: the value of this replica.
            axis: an axis of the value to reduce first.

        Raises:
            ValueError: if the operation is another one.
        """
        own, over_replicas = jnp.mean, cross_replica_ops.cross_replica_mean
        if ReduceOp.parse(reduce_op) is ReduceOp.SUM:
            own, over_replicas = jnp.sum, cross_replica_ops.cross_replica_sum
        return over_replicas(value if axis is None else own(value, axis))

    def experimental_run_v2(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError("experimental_run_v2() was removed. Call run() with the same arguments.")

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices of the logical device, as configured now."""
        return config.devices_of(self._ipu_device)

    def _engine(self) -> Engine:
        applied = config.applied()
        if self._native is None or self._native[0] != applied:
            self._native = applied, Engine(applied.config, self.devices, self.reduction)
        return self._native[1]


IPUStrategy = IPUStrategyV1


class Engine(convoy.Strategy):
    """A `convoy.Strategy` whose models also have Graphcore's methods."""

    def __init__(
        self,
        config: IPUConfig,
        devices: tuple[jax.Device, ...],
        reduction: Reduction,
        loss_scale: AutomaticLossScale | None = None,
    ) -> None:
        options = strategy_options(config)
        super().__init__(devices=devices, reduction=reduction, loss_scale=loss_scale, **options)
        self.config = config
        self.reduction: Reduction = reduction

    def adopt(self, new: keras.Model) -> None:
        folder = report_folder(self.config.compilation_poplar_options)
        if folder is not None and self.observer is NULL_OBSERVER:
            self.record(new_folder(folder))
        super().adopt(new)
        extend(new, self)

    def changed(
        self, count: int, reduction: Reduction | None, loss_scale: AutomaticLossScale | None
    ) -> Engine:
        """Return a copy on the first devices, with other gradient options."""
        devices = self.devices[:count]
        changed = Engine(self.config, devices, reduction or self.reduction, loss_scale)
        if isinstance(self.observer, Recording):
            self.observer.observe(changed)
        return changed


def strategy_options(config: IPUConfig) -> dict[str, Any]:
    """Return the arguments of `convoy.Strategy` for a configuration."""
    bucket = config.optimizations.maximum_cross_replica_sum_buffer_size
    floating_point = config.floating_point_behaviour
    rounding = _ROUNDING[floating_point.esr]
    return {
        "batch_norm_group": config.norms.experimental.distributed_batch_norm_replica_group_size,
        "stochastic_rounding": "on" if floating_point.set_all else rounding,
        **({"reduction_bucket": bucket} if bucket else {}),
    }


def current() -> IPUStrategyV1 | None:
    """Return the strategy of the innermost scope of this thread."""
    return _current.get()
