"""Configuration of a run: devices, gradient accumulation and data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import jax.numpy as jnp
import keras
from convoy.arguments import whole_number
from convoy.engine.data.chunks import Chunk, StepDivision
from convoy.engine.data.placement import Placement
from convoy.engine.state import Mode
from convoy.engine.step.all_reduce import Reduction

if TYPE_CHECKING:
    from convoy.engine.chunk_runner import ModelRunner
    from convoy.engine.observer import Observer

BatchMeaning = Literal["replica", "global"]
Shard = Literal["optimizer", "weights"]


class Pipeline(Protocol):
    """Pipeline options, as far as the engine uses them."""

    def make_runner(
        self, model: keras.Model, config: ExecutionConfig, mode: Mode, observer: Observer
    ) -> ModelRunner:
        """Return the runner of a model with pipeline stages."""
        ...


@dataclass(frozen=True)
class ExecutionConfig:
    """Configuration of a run, apart from the model and the data.

    Attributes:
        placement: the devices.
        gradient_accumulation: micro-batches per weight update and replica.
        accumulation_reduction: reduction of gradients over these micro-batches.
        accumulation_dtype: type in which they are added up; by default that of each variable.
        reduction: reduction of gradients over replicas.
        batch: the meaning of `batch_size` in `fit`: the micro-batch of one replica, or all samples
            of a weight update.
        reduction_bucket: bytes of gradients that are reduced over replicas together; with 0, each
            gradient is reduced separately.
        batch_norm_group: replicas that share batch-normalisation statistics.
        shard: the state that is sharded over replicas: `"optimizer"` (ZeRO-1), or `"weights"` with
            the optimizer's state (ZeRO-3, FSDP).
        gather_budget: maximum bytes of weights and gradients on a device for gathering sharded
            weights once per weight update; above it, they are gathered for each micro-batch.
        activation_checkpointing: patterns of layer names, or a number of bytes; see
            `convoy.engine.step.activation_checkpointing`.
        pipeline: the options of a model with pipeline stages, whose placement is then a
            pipeline's.
    """

    placement: Placement
    gradient_accumulation: int = 1
    accumulation_reduction: Reduction = "mean"
    accumulation_dtype: str | None = None
    reduction: Reduction = "mean"
    batch: BatchMeaning = "replica"
    reduction_bucket: int = 0
    batch_norm_group: int = 1
    shard: Shard | None = None
    gather_budget: int = 0
    activation_checkpointing: int | tuple[str, ...] | None = None
    pipeline: Pipeline | None = None

    def __post_init__(self) -> None:
        whole_number(
            "gradient_accumulation", self.gradient_accumulation, "a number of micro-batches"
        )
        whole_number("reduction_bucket", self.reduction_bucket, "a number of bytes", 0)
        whole_number("batch_norm_group", self.batch_norm_group, "a number of replicas")
        dtype = self.accumulation_dtype
        if dtype is not None and not _is_floating(dtype):
            raise ValueError(
                f"accumulation_dtype={dtype!r} cannot hold gradients. Pass a floating-point "
                "type, for example 'float32'."
            )
        for reduction in (self.accumulation_reduction, self.reduction):
            if reduction not in get_args(Reduction):
                raise ValueError(f"reduction={reduction!r} is unknown. Pass 'mean' or 'sum'.")
        if self.batch not in get_args(BatchMeaning):
            raise ValueError(
                f"batch={self.batch!r} is unknown. Pass 'replica' (batch_size is the micro-batch "
                "of one replica) or 'global' (it is all samples of a weight update)."
            )
        if self.shard not in (None, *get_args(Shard)):
            raise ValueError(
                f"shard={self.shard!r} is unknown. Pass 'optimizer' (each replica stores a shard "
                "of the optimizer's state) or 'weights' (also a shard of the weights)."
            )
        if self.replicas % self.batch_norm_group:
            divisors = [n for n in range(1, self.replicas + 1) if self.replicas % n == 0]
            raise ValueError(
                f"batch_norm_group={self.batch_norm_group} does not divide {self.replicas} "
                f"replicas. Pass one of {', '.join(map(str, divisors))}."
            )

    @property
    def replicas(self) -> int:
        return self.placement.replicas

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a weight update, over all replicas."""
        return self.replicas * self.gradient_accumulation

    def gradient_accumulation_for(self, mode: Mode, chunk: Chunk) -> int:
        """Return the gradient accumulation of a chunk, which is 1 unless in training."""
        return self.gradient_accumulation if mode == "train" and chunk.sharded else 1

    def device_steps(self, mode: Mode, chunk: Chunk) -> int:
        """Return the steps of the device loop for a chunk.

        They are weight updates in training, and micro-batches otherwise. `Chunk.steps` counts the
        user's steps instead.
        """
        return chunk.micro_batches // self.gradient_accumulation_for(mode, chunk)

    def local_batches_in_mean(self, mode: Mode, chunk: Chunk) -> int:
        """Return the number of local batches over which losses and gradients are averaged."""
        replicas = self.replicas if chunk.sharded and self.reduction == "mean" else 1
        averages = self.accumulation_reduction == "mean"
        return replicas * (self.gradient_accumulation_for(mode, chunk) if averages else 1)

    @cached_property
    def divisions(self) -> dict[Mode, StepDivision]:
        """The division of data into steps, in each mode."""
        replicas, gradient_accumulation = self.placement.replicas, self.gradient_accumulation
        whole = StepDivision(replicas)
        if self.batch == "global":
            training = StepDivision(replicas, micro_batches_per_step=gradient_accumulation)
        else:
            training = StepDivision(
                replicas,
                steps_per_update=gradient_accumulation,
                keeps_incomplete=self.micro_batches == 1,
            )
        return {"train": training, "evaluate": whole, "predict": whole}


def _is_floating(dtype: str) -> bool:
    try:
        return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        return False
