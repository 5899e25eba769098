"""From settings to the numbers of a run."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from convoy import distributed
from convoy.batch_config import BatchConfig

from cosmoflow.settings import Settings


@dataclass(frozen=True)
class Plan:
    """The numbers of a run.

    Attributes:
        settings: as asked for.
        batch: how samples are divided.
    """

    settings: Settings
    batch: BatchConfig

    @property
    def devices(self) -> int:
        return self.batch.replicas * self.settings.devices.stages

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch; in each, every replica takes a micro-batch."""
        return self.settings.data.n_train // (self.batch.micro_batch * self.batch.replicas)

    @property
    def updates_per_epoch(self) -> int:
        return self.steps_per_epoch // self.batch.accumulation

    @property
    def steps(self) -> int:
        return self.settings.data.n_epochs * self.steps_per_epoch

    @property
    def steps_per_call(self) -> int:
        """Steps of a device call, which ends with an epoch in any case."""
        return min(self.settings.devices.iterations_per_loop, self.steps_per_epoch)

    @property
    def calls(self) -> int:
        """Device calls of the run."""
        return self.settings.data.n_epochs * -(-self.steps_per_epoch // self.steps_per_call)

    @property
    def samples_per_step(self) -> int:
        return self.batch.micro_batch * self.batch.replicas


def make_plan(settings: Settings) -> Plan:
    """Work out the numbers of a run; in a launched one, its replicas are those of the launch.

    Raises:
        ValueError: if they do not divide.
    """
    data, devices = settings.data, settings.devices
    replicas = devices.num_ipus
    if distributed.count() > 1:
        replicas = len(jax.devices()) // devices.stages
        if not replicas or replicas % distributed.count():
            raise ValueError(
                f"{len(jax.devices())} devices in {distributed.count()} processes do not make "
                f"replicas of {devices.stages} stages. Launch with --ipus-per-replica "
                f"{devices.stages}."
            )
    batch = BatchConfig(data.micro_batch_size, replicas, devices.gradient_accumulation)
    if data.n_train % batch.global_batch:
        near = data.n_train // batch.global_batch * batch.global_batch or batch.global_batch
        raise ValueError(
            f"data.n_train {data.n_train} is not whole weight updates of {batch.global_batch} "
            f"samples: micro_batch_size {batch.micro_batch} x {replicas} replicas x "
            f"gradient_accumulation {batch.accumulation}. Set it to {near}."
        )
    plan = Plan(settings, batch)
    if plan.steps_per_call % batch.accumulation:
        raise ValueError(
            f"ipu_config.iterations_per_loop {plan.steps_per_call} is not a multiple of "
            f"gradient_accumulation {batch.accumulation}. Set it to "
            f"{-(-plan.steps_per_call // batch.accumulation) * batch.accumulation}."
        )
    return plan
