"""The ways to divide a weight update over devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

SCHEDULES = ("1f1b", "zero-bubble", "gpipe")
LARGEST_MICRO_BATCH = 256
MOST_STAGES = 16
# A division into stages that leaves more of the devices idle is not looked at.
IN_USE = 0.9


@dataclass(frozen=True)
class Configuration:
    """A way to divide a weight update.

    Attributes:
        replicas: copies of the model.
        stages: devices of one copy.
        micro_batch: samples that a copy takes at a time.
        accumulation: micro-batches per weight update and copy.
        schedule: of a pipeline; empty for a model in one piece.
        recompute: whether activations are computed again instead of being kept.
    """

    replicas: int
    stages: int
    micro_batch: int
    accumulation: int
    schedule: str = ""
    recompute: bool = False

    @property
    def devices(self) -> int:
        return self.replicas * self.stages

    @property
    def global_batch(self) -> int:
        return self.replicas * self.micro_batch * self.accumulation


def configurations(
    devices: int, per_host: int, global_batch: int, most_stages: int
) -> Iterator[Configuration]:
    """Yield every way that keeps the global batch, without those that are never the best.

    For each number of stages that a host has devices for, as many replicas as there are devices
    for and as divide the batch, if that leaves few devices idle; each size of the micro-batch that
    divides a replica's share; each schedule but `sequential`, which leaves all but one waiting.

    Args:
        devices: that there are.
        per_host: of them, on a host; all stages of a replica are on one.
        global_batch: samples of a weight update.
        most_stages: that the model can be cut into.
    """
    for stages in range(1, min(devices, per_host, most_stages, MOST_STAGES) + 1):
        room = devices // per_host * (per_host // stages) + devices % per_host // stages
        replicas = next(n for n in range(min(room, global_batch), 0, -1) if global_batch % n == 0)
        if stages > 1 and replicas * stages < IN_USE * min(devices, global_batch):
            continue
        share = global_batch // replicas
        sizes = [n for n in range(1, min(share, LARGEST_MICRO_BATCH) + 1) if share % n == 0]
        for micro_batch, schedule, recompute in product(
            sizes, SCHEDULES if stages > 1 else ("",), (False, True)
        ):
            count = share // micro_batch
            yield Configuration(replicas, stages, micro_batch, count, schedule, recompute)
