"""Step arithmetic of a run: samples, steps, device calls, weight updates, epochs."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from convoy import distributed
from convoy.batch_config import BatchConfig

from cosmoflow.settings import Settings


@dataclass(frozen=True)
class RunPlan:
    """Settings of a run and the numbers that follow from them.

    Attributes:
        settings: settings of the run.
        batch: micro-batch size, replicas and gradient accumulation.
    """

    settings: Settings
    batch: BatchConfig

    @property
    def devices(self) -> int:
        return self.batch.replicas * self.settings.ipu_config.stages

    @property
    def samples_per_step(self) -> int:
        """Samples of a step, in which every replica processes one micro-batch."""
        return self.batch.micro_batch * self.batch.replicas

    @property
    def steps_per_epoch(self) -> int:
        return self.settings.data.n_train // self.samples_per_step

    @property
    def updates_per_epoch(self) -> int:
        return self.steps_per_epoch // self.batch.gradient_accumulation

    @property
    def steps(self) -> int:
        return self.settings.data.n_epochs * self.steps_per_epoch

    @property
    def steps_per_execution(self) -> int:
        """Steps of a device call; a call never exceeds an epoch."""
        return min(self.settings.ipu_config.iterations_per_loop, self.steps_per_epoch)

    @property
    def calls(self) -> int:
        """Device calls of the run."""
        return self.settings.data.n_epochs * -(-self.steps_per_epoch // self.steps_per_execution)


def make_plan(settings: Settings) -> RunPlan:
    """Compute the numbers of a run; a launched run has the replicas of the launch.

    Raises:
        ValueError: if samples, replicas or steps do not divide evenly.
    """
    data, devices = settings.data, settings.ipu_config
    replicas = devices.num_ipus
    if distributed.count() > 1:
        replicas = len(jax.devices()) // devices.stages
        if not replicas or replicas % distributed.count():
            raise ValueError(
                f"{len(jax.devices())} devices in {distributed.count()} processes do not form "
                f"replicas of {devices.stages} stages. Launch with --ipus-per-replica "
                f"{devices.stages}."
            )
    batch = BatchConfig(data.micro_batch_size, replicas, devices.gradient_accumulation)
    if data.n_train % batch.global_batch:
        near = data.n_train // batch.global_batch * batch.global_batch or batch.global_batch
        raise ValueError(
            f"data.n_train {data.n_train} is not a multiple of the global batch size "
            f"{batch.global_batch}: micro_batch_size {batch.micro_batch} x {replicas} replicas x "
            f"gradient_accumulation {batch.gradient_accumulation}. Set it to {near}."
        )
    plan = RunPlan(settings, batch)
    micro_batches = batch.gradient_accumulation
    if plan.steps_per_execution % micro_batches:
        raise ValueError(
            f"ipu_config.iterations_per_loop {plan.steps_per_execution} is not a multiple of "
            f"gradient_accumulation {micro_batches}. Set it to "
            f"{-(-plan.steps_per_execution // micro_batches) * micro_batches}."
        )
    return plan
