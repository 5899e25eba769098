"""How a model's work is divided over devices, and gathered into weight updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import jax.numpy as jnp
import keras
from convoy.engine.data.chunks import Cut, Placement
from convoy.engine.state import Mode
from convoy.engine.step.all_reduce import Reduction

if TYPE_CHECKING:
    from convoy.engine.chunk_runner import ModelRunner
    from convoy.engine.observer import Observer

BatchMeaning = Literal["replica", "global"]


@dataclass(frozen=True)
class Accumulation:
    """How gradients of several micro-batches become those of one weight update.

    Args:
        count: micro-batches per weight update and replica.
        reduction: `"mean"` or `"sum"` over these micro-batches.
        dtype: the type they are added up in; by default that of each variable.
    """

    count: int = 1
    reduction: Reduction = "mean"
    dtype: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ValueError(
                f"gradient_accumulation={self.count!r} is not a number of micro-batches. "
                "Pass 1 or more."
            )
        check_reduction(self.reduction)
        if self.dtype is not None and not jnp.issubdtype(jnp.dtype(self.dtype), jnp.floating):
            raise ValueError(
                f"accumulation_dtype={self.dtype!r} cannot hold gradients. Pass a floating-point "
                "type, for example 'float32'."
            )


class Pipeline(Protocol):
    """Pipeline options, as far as the engine uses them."""

    def programs(
        self, model: keras.Model, config: ExecutionConfig, mode: Mode, observer: Observer
    ) -> ModelRunner:
        """Return the runner of a model with pipeline stages."""
        ...


@dataclass(frozen=True)
class ExecutionConfig:
    """Everything about a run that is not the model's, nor the data's.

    Attributes:
        placement: the devices.
        accumulation: how micro-batches become weight updates.
        reduction: of gradients over replicas.
        batch: what `batch_size` in `fit` counts: a replica's micro-batch, or all samples of a
            weight update.
        reduction_bucket: gradients are reduced over replicas in buckets of about this size; one by
            one if 0.
        batch_norm_group: replicas that share batch-normalisation statistics.
        shard_optimizer_state: whether each replica keeps a share of the optimizer's state.
        activation_checkpointing: which activations are not kept, see
            `convoy.engine.step.activation_checkpointing`.
        pipeline: what runs a model in stages; its placement is then a pipeline's.
    """

    placement: Placement
    accumulation: Accumulation = field(default_factory=Accumulation)
    reduction: Reduction = "mean"
    batch: BatchMeaning = "replica"
    reduction_bucket: int = 0
    batch_norm_group: int = 1
    shard_optimizer_state: bool = False
    activation_checkpointing: int | tuple[str, ...] | None = None
    pipeline: Pipeline | None = None

    def __post_init__(self) -> None:
        check_reduction(self.reduction)
        if self.batch not in get_args(BatchMeaning):
            raise ValueError(
                f"batch={self.batch!r} is unknown. Pass 'replica' (batch_size is the micro-batch "
                "of one replica) or 'global' (it is all samples of a weight update)."
            )
        if self.reduction_bucket < 0:
            raise ValueError(
                f"reduction_bucket={self.reduction_bucket} is not a number of bytes. "
                "Pass 0 or more."
            )
        if self.batch_norm_group < 1 or self.replicas % self.batch_norm_group:
            raise ValueError(
                f"batch_norm_group={self.batch_norm_group} does not divide {self.replicas} "
                f"replicas. Pass one of {', '.join(map(str, _divisors(self.replicas)))}."
            )

    @property
    def replicas(self) -> int:
        return self.placement.replicas

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a weight update, over all replicas."""
        return self.replicas * self.accumulation.count

    def cut(self, mode: Mode) -> Cut:
        """Return how data is cut into steps."""
        if mode != "train":
            return Cut(self.replicas)
        count = self.accumulation.count
        if self.batch == "global":
            return Cut(self.replicas, parts=count)
        return Cut(self.replicas, group=count, keeps_rest=self.micro_batches == 1)


def check_reduction(reduction: str) -> None:
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction={reduction!r} is unknown. Pass 'mean' or 'sum'.")


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
