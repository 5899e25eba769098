"""Strategy: on which devices, and how, a model runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

import jax
import keras
import numpy as np
from convoy import devices as device_choice
from convoy import distributed, keras_bridge, model
from convoy import precision as precisions
from convoy.engine.data.chunks import Placement
from convoy.engine.execution_config import Accumulation, BatchMeaning, ExecutionConfig, Reduction
from convoy.engine.numerics import loss_scale as loss_scales
from convoy.engine.numerics import numerics
from convoy.engine.numerics.loss_scale import LossScale
from convoy.engine.numerics.numerics import StochasticRounding
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.replica_axis import AXIS

if TYPE_CHECKING:
    from convoy.report.recording import Recording

# Large enough that the exchange costs more than its start, small enough to join in the cache.
REDUCTION_BUCKET = 4 << 20

_current: ContextVar[Strategy | None] = ContextVar("convoy_strategy", default=None)


class Strategy:
    """Says on which devices, and how, models are trained, evaluated and served.

    A `keras.Model` that is made inside `scope()` runs on Convoy's engine from then on; models
    made elsewhere are untouched.

    Args:
        devices: how many devices, or which ones; each holds a replica of the model. A CPU is
            split into that many virtual ones. By default the number in the variable
            `CONVOY_DEVICES`, else one; in a script that `convoy launch` runs, the devices of all
            its distributed.
        replicas: how many replicas, if not one on every device. Devices left over are named in a
            warning.
        batch: what `batch_size` in `fit` counts: `"replica"`, the micro-batch of one replica; or
            `"global"`, all samples of a weight update, which are divided over replicas and
            accumulated micro-batches.
        gradient_accumulation: micro-batches per weight update and replica. Schedules and
            `optimizer.iterations` count weight updates.
        accumulation_dtype: the type in which gradients are added up; by default their own.
        reduction: of the gradients, over micro-batches and replicas: `"mean"` gives the update of
            one big batch, `"sum"` that much more.
        reduction_bucket: bytes of gradients that are exchanged between replicas at a time; 0
            exchanges one variable's after the other.
        batch_norm_group: replicas that share the statistics of batch normalisation; it must
            divide their number.
        shard_optimizer_state: whether each replica keeps a share of the optimizer's state, instead
            of all of it.
        activation_checkpointing: names of layers (`"conv2_*"` fits many) whose activations are
            computed again in the backward pass instead of being kept. A number is the bytes that
            activations may take on a device, and `"auto"` is half of its memory: as many
            layers are then chosen as it takes. For functional and sequential models.
        data_budget: bytes of each device's memory that data may take. Data sets that fit are
            moved there once; others are streamed in blocks. By default a quarter of the memory.
        precision: precision of models that are made in the scope, as the name of a Keras dtype
            policy: `"float32"`, `"mixed_float16"`, `"float16"`, `"mixed_bfloat16"` or
            `"bfloat16"`; or as compute and weight-update precision in bits: `"32.32"`, `"16.32"`,
            `"16.16"`, `"bf16.32"` or `"bf16.16"`. By default Keras's current policy.
        loss_scale: what the loss is multiplied by and the gradients are divided by, so that small
            ones survive 16 bits: a number, `"auto"`, or an `AutomaticLossScale`. Updates whose
            gradients overflow are left out. By default Keras's way: none, but for the
            `LossScaleOptimizer` that it puts around the optimizer of a model in `"16.32"`.
        stochastic_rounding: `"on"` or `"replica_identical"` computes the update of 16-bit weights
            in float32 and rounds up or down by chance, so that small steps are not lost; `"off"`
            rounds to nearest, as Keras does. The replicas of a model share their weights, so they
            round alike in either case.
        half_partials: whether products of 16-bit numbers are summed in 16 bits. On a CPU XLA sums
            them in float32 whatever it is told, so `True` only says so in a warning.

    Raises:
        ValueError: if there are too few devices, numbers do not fit together, or a word is unknown.

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
        shard_optimizer_state: bool = False,
        activation_checkpointing: int | str | Sequence[str] | None = None,
        data_budget: int | None = None,
        precision: str | None = None,
        loss_scale: float | str | LossScale | None = None,
        stochastic_rounding: StochasticRounding = "off",
        half_partials: bool = False,
    ) -> None:
        self.devices = device_choice.for_replicas(device_choice.select(devices), replicas)
        if data_budget is None:
            # Processes that decide by it must decide alike, on whatever hosts they are.
            data_budget = distributed.from_first(device_choice.memory(self.devices) // 4)
        elif data_budget < 0:
            raise ValueError(f"data_budget={data_budget} is not a number of bytes. Pass 0 or more.")
        self.data_budget = data_budget
        self.execution_config = ExecutionConfig(
            Placement(self._mesh()),
            Accumulation(gradient_accumulation, reduction, accumulation_dtype),
            reduction,
            batch,
            reduction_bucket,
            batch_norm_group,
            shard_optimizer_state,
            self._remat(activation_checkpointing),
        )
        self.precision = None if precision is None else precisions.find(precision)
        self.numerics = numerics.Settings(
            self.precision, loss_scales.find(loss_scale), stochastic_rounding
        )
        self.observer: Observer = NULL_OBSERVER
        """Who is told of what its models do."""
        if half_partials:
            precisions.warn_of_half_partials()

    @property
    def replicas(self) -> int:
        """The number of copies of the model that train side by side."""
        return self.execution_config.replicas

    @contextlib.contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Take in every `keras.Model` that this thread makes in the block."""
        token = _current.set(self)
        try:
            with (
                self.precision.scope() if self.precision else contextlib.nullcontext(),
                keras_bridge.watch_new_models(_adopt),
            ):
                yield self
        finally:
            _current.reset(token)

    def adopt(self, new: keras.Model) -> None:
        """Have a model run on this strategy, as `scope` does with every model that is made in it.

        A subclass may add to it, say to give models more methods.
        """
        PreparedModel.of(new).numerics = numerics.Numerics(self.numerics)
        model.attach(
            new, self.execution_config, self.data_budget, self.devices, lambda: self.observer
        )

    def record(self, folder: str | os.PathLike[str]) -> Recording:
        """Write a report of what its models do from now on: programs, times, memory, metrics.

        `convoy report FOLDER` makes a page of it, also while the run goes on. Programs that were
        compiled before are compiled anew, to be looked at.

        Args:
            folder: where the report goes; one that is there is replaced.

        Returns:
            What records, until it is closed or the process ends; in a `with` statement, until the
            end of the block.

        Raises:
            ReportError: if the folder cannot be written to.

        Example:
        ```python
        with strategy.record("report"):
            model.fit(x, y, epochs=3)
        ```
        """
        # What reports on programs is above what makes them.
        from convoy.report.recording import Recording

        if isinstance(self.observer, Recording):
            self.observer.close()
        return Recording(folder, self.devices).observe(self)

    def _mesh(self) -> jax.sharding.Mesh | None:
        # One device that is JAX's default needs no placement, so arrays stay free to move.
        if len(self.devices) == 1 and self.devices[0] == jax.devices()[0]:
            return None
        return jax.sharding.Mesh(np.array(self.devices), (AXIS,))

    def _remat(self, asked: int | str | Sequence[str] | None) -> int | tuple[str, ...] | None:
        if asked is None:
            return None
        if isinstance(asked, int):
            if isinstance(asked, bool) or asked < 0:
                raise ValueError(
                    f"activation_checkpointing={asked} is not a number of bytes. Pass 0 or more."
                )
            return asked
        if asked == "auto":
            return device_choice.memory(self.devices) // 2
        return (asked,) if isinstance(asked, str) else tuple(asked)

    def __repr__(self) -> str:
        return f"Strategy({len(self.devices)} x {self.devices[0].platform})"


def current() -> Strategy | None:
    """Return the strategy whose scope this thread is in."""
    return _current.get()


def prepare(existing: keras.Model, strategy: Strategy | None = None) -> keras.Model:
    """Take in a model that exists already, say one from `keras.applications`.

    Args:
        existing: the model; it is changed in place and keeps its weights and its compilation.
        strategy: by default that of the scope around the call, else a new `Strategy()`.

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
