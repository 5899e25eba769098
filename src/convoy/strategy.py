"""Strategy: the devices and the parallel configuration of models."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np
from convoy import compile_target, distributed, keras_bridge, model
from convoy import devices as device_choice
from convoy import precision as precisions
from convoy.arguments import whole_number
from convoy.context import bound
from convoy.engine.data.placement import AXIS, Placement
from convoy.engine.execution_config import BatchMeaning, ExecutionConfig, Reduction, Shard
from convoy.engine.numerics import loss_scale as loss_scales
from convoy.engine.numerics.loss_scale import LossScaling
from convoy.engine.numerics.numerics import Numerics, Settings, StochasticRounding
from convoy.engine.observer import Observer, default_observer
from convoy.engine.prepared_model import PreparedModel

if TYPE_CHECKING:
    from convoy.report.recording import Recording

# Large enough that latency does not dominate an exchange, small enough to stay in the cache.
REDUCTION_BUCKET = 4 << 20

# The fraction of a device's memory that gathered weights and their gradients may take if they are
# gathered once per weight update. Larger models save memory instead of communication.
GATHERED_PART = 8

_current: ContextVar[Strategy | None] = ContextVar("convoy_strategy", default=None)


class Strategy:
    """The devices and the parallel configuration with which models are trained and evaluated.

    A `keras.Model` that is created inside `scope()` runs on Convoy's engine; other models do not
    change.

    Args:
        devices: number of devices, or a list of devices; each holds a replica of the model (data
            parallelism). A CPU is divided into that many virtual devices. The default is the number
            in the environment variable `CONVOY_DEVICES`, or one if it is not set; in a script run
            by `convoy launch`, the devices of all processes.
        replicas: number of replicas, by default one per device. A warning names unused devices.
        batch: meaning of `batch_size` in `fit`: `"replica"` for the micro-batch of one replica;
            `"global"` for the global batch, which is divided over replicas and accumulated
            micro-batches.
        gradient_accumulation: number of micro-batches per weight update and replica. Learning-rate
            schedules and `optimizer.iterations` count weight updates.
        accumulation_dtype: dtype of the accumulated gradients; by default the dtype of each
            gradient.
        reduction: reduction of the gradients over micro-batches and replicas: `"mean"` gives the
            gradient of the global batch, `"sum"` adds the gradients.
        reduction_bucket: bucket size of the all-reduce in bytes; 0 reduces each gradient
            separately.
        batch_norm_group: number of replicas that share batch-normalisation statistics
            (SyncBatchNorm); it must divide the number of replicas.
        shard: state that is sharded over the replicas: `"optimizer"` for the optimizer state
            (ZeRO-1); `"weights"` for the weights and the optimizer state (ZeRO-3, FSDP).
        shard_optimizer_state: an alias of `shard="optimizer"`.
        activation_checkpointing: names of layers whose activations are recomputed in the backward
            pass instead of being stored; patterns such as `"conv2_*"` are allowed. A number limits
            the bytes of activations on each device, and `"auto"` limits them to half of the
            device's memory; the layers are then chosen automatically. For functional and sequential
            models.
        data_budget: bytes of each device's memory that data may take, by default a quarter of the
            memory. Arrays that fit are transferred once; other data is streamed in blocks.
        precision: precision of models that are created in the scope (mixed precision), as the name
            of a Keras dtype policy: `"float32"`, `"mixed_float16"`, `"float16"`, `"mixed_bfloat16"`
            or `"bfloat16"`; or as compute and weight-update precision in bits: `"32.32"`,
            `"16.32"`, `"16.16"`, `"bf16.32"` or `"bf16.16"`. `"auto"` selects `"mixed_bfloat16"` on
            devices where it is faster, otherwise `"float32"`; the choice is logged. The default is
            Keras's current policy.
        loss_scale: factor by which the loss is multiplied and the gradients are divided, so that
            small gradients do not underflow in 16 bits: a number, `"auto"`, or an
            `AutomaticLossScale`. Updates whose gradients overflow are skipped. By default there is
            none, except for the `LossScaleOptimizer` in which Keras wraps the optimizer under
            `"mixed_float16"`.
        stochastic_rounding: `"on"` or `"replica_identical"` computes the update of 16-bit weights
            in float32 and rounds it stochastically, so that small updates are not lost; `"off"`
            rounds to nearest, as Keras does. All replicas round in the same way.
        half_partials: whether products of 16-bit numbers are summed in 16 bits. On a CPU, XLA
            always sums them in float32, so `True` only causes a warning.

    Raises:
        ValueError: if there are too few devices, or if an argument is invalid.

    Example:
    ```python
    strategy = convoy.Strategy(devices=2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Conv2D(32, 3), ...])
        model.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=100)
    model.fit(x, y, batch_size=32, epochs=3)
    ```
    """

    def __init__(
        self,
        devices: int | Sequence[jax.Device] | None = None,
        *,
        replicas: int | None = None,
        batch: BatchMeaning = "replica",
        gradient_accumulation: int = 1,
        accumulation_dtype: str | None = None,
        reduction: Reduction = "mean",
        reduction_bucket: int = REDUCTION_BUCKET,
        batch_norm_group: int = 1,
        shard: Shard | None = None,
        shard_optimizer_state: bool = False,
        activation_checkpointing: int | str | Sequence[str] | None = None,
        data_budget: int | None = None,
        precision: str | None = None,
        loss_scale: float | str | LossScaling | None = None,
        stochastic_rounding: StochasticRounding = "off",
        half_partials: bool = False,
    ) -> None:
        self._arguments = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "__class__", "devices", "replicas")
        }
        self.devices = device_choice.for_replicas(device_choice.select(devices), replicas)
        # All processes must use the same value, even on hosts with different memory.
        memory = distributed.from_first(device_choice.memory(self.devices))
        if data_budget is None:
            data_budget = memory // 4
        self.data_budget = whole_number("data_budget", data_budget, "a number of bytes", 0)
        self.execution_config = ExecutionConfig(
            Placement(self._mesh()),
            gradient_accumulation=gradient_accumulation,
            accumulation_reduction=reduction,
            accumulation_dtype=accumulation_dtype,
            reduction=reduction,
            batch=batch,
            reduction_bucket=reduction_bucket,
            batch_norm_group=batch_norm_group,
            shard=_shard(shard, shard_optimizer_state),
            gather_budget=memory // GATHERED_PART,
            activation_checkpointing=self._checkpointing(activation_checkpointing),
        )
        self.precision = self._precision(precision)
        self.numerics = Settings(self.precision, loss_scales.find(loss_scale), stochastic_rounding)
        self.observer: Observer = default_observer()
        """The observer of all runs of the strategy's models."""
        if half_partials:
            precisions.warn_of_half_partials()

    @property
    def replicas(self) -> int:
        """The number of replicas of the model."""
        return self.execution_config.replicas

    @contextlib.contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Prepare every `keras.Model` that this thread creates in the block."""
        with (
            bound(_current, self),
            self.precision.scope() if self.precision else contextlib.nullcontext(),
            keras_bridge.adopt_new_models(_adopt),
        ):
            yield self

    def adopt(self, new: keras.Model) -> None:
        """Prepare a model for this strategy, as `scope` does for every model created in it.

        A subclass may extend this, for example to add methods to models.
        """
        PreparedModel.of(new).numerics = Numerics(self.numerics)
        model.attach(new, self.execution_config, self.data_budget, self.devices, self)

    def record(self, folder: str | os.PathLike[str]) -> Recording:
        """Record a report of all runs that follow: programs, times, memory and metrics.

        `convoy report FOLDER` renders it as a page, also while a run is in progress. Programs that
        were compiled before are compiled again for the analysis.

        Args:
            folder: folder of the report; an existing report is replaced.

        Returns:
            The recording, which lasts until it is closed or the process ends; in a `with`
            statement, until the end of the block.

        Raises:
            ReportError: if the folder cannot be written to.

        Example:
        ```python
        with strategy.record("report"):
            model.fit(x, y, epochs=3)
        ```
        """
        # `report` is above this module in the layers.
        from convoy.report.recording import Recording

        if isinstance(self.observer, Recording):
            self.observer.close()
        return Recording(folder, self.devices).observe(self)

    def _precision(self, name: str | None) -> precisions.Precision | None:
        if name is None:
            return None
        found = device_choice.find_precision(name, self.devices[0])
        if name == precisions.AUTO:
            logger = logging.getLogger("convoy.precision")
            logger.warning("precision='auto' is %r here", found.policy)
        return found

    def _mesh(self) -> jax.sharding.Mesh | None:
        # JAX's default device needs no mesh, and its arrays stay uncommitted.
        if len(self.devices) == 1 and self.devices[0] == compile_target.default_device():
            return None
        return jax.sharding.Mesh(np.array(self.devices), (AXIS,))

    def _checkpointing(
        self, requested: int | str | Sequence[str] | None
    ) -> int | tuple[str, ...] | None:
        if requested is None:
            return None
        if requested == "auto":
            return device_choice.memory(self.devices) // 2
        if isinstance(requested, str):
            return (requested,)
        if isinstance(requested, Iterable) and all(isinstance(one, str) for one in requested):
            return tuple(requested)
        name = "activation_checkpointing"
        try:
            return whole_number(name, requested, "a number of bytes", 0)
        except ValueError:
            raise ValueError(
                f"{name}={requested!r} is not a number of bytes or a list of layer names. Pass "
                "'auto', a number of bytes, or a list of layer names."
            ) from None

    def __deepcopy__(self, memo: dict) -> Strategy:
        """Return the strategy itself, which copies of its models share."""
        return self

    def __reduce__(self) -> tuple[Callable[..., Strategy | None], tuple]:
        arguments = self._arguments if type(self) is Strategy else None
        return _unpickle, ([device.id for device in self.devices], arguments)

    def __repr__(self) -> str:
        return f"Strategy({len(self.devices)} x {self.devices[0].platform})"


def _shard(shard: Shard | None, shard_optimizer_state: bool) -> Shard | None:
    if not shard_optimizer_state:
        return shard
    if shard not in (None, "optimizer"):
        raise ValueError(
            f"shard={shard!r} was passed with shard_optimizer_state=True, which stands for "
            "shard='optimizer'. Leave out shard_optimizer_state: with shard='weights', the "
            "optimizer's state is sharded as well."
        )
    return "optimizer"


def current() -> Strategy | None:
    """Return the strategy of the scope that this thread is in."""
    return _current.get()


def prepare(existing: keras.Model, strategy: Strategy | None = None) -> keras.Model:
    """Prepare an existing model, for example one from `keras.applications`.

    Args:
        existing: the model; it is changed in place and keeps its weights and its compilation.
        strategy: the strategy; by default that of the current scope, otherwise a new `Strategy()`.

    Returns:
        The same model.

    Raises:
        ValueError: if the strategy has a precision that the model was not made with.
    """
    if not isinstance(existing, keras.Model):
        raise TypeError(f"prepare() takes a keras.Model, but received {type(existing).__name__}.")
    strategy = strategy or current() or Strategy()
    if strategy.precision is not None:
        strategy.precision.check(existing)
    strategy.adopt(existing)
    return existing


def _adopt(new: keras.Model) -> None:
    strategy = current()
    if strategy is not None:
        strategy.adopt(new)


def _unpickle(ids: list[int], arguments: dict[str, Any] | None) -> Strategy | None:
    """Return the strategy of a model that was pickled, or `None` after a warning."""
    available = {device.id: device for device in jax.devices()}
    missing = [number for number in ids if number not in available]
    if arguments is not None and not missing:
        return Strategy([available[number] for number in ids], **arguments)
    reason = f"there is no device {missing[0]}" if missing else "a subclass of it cannot be pickled"
    warnings.warn(
        f"The unpickled model is a stock Keras model without its strategy: {reason} in this "
        "process. Use convoy.prepare(model, strategy) with another strategy.",
        stacklevel=2,
    )
    return None
