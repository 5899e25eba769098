"""The devices that are planned for: how fast they compute, and how fast they send."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Devices that are all alike, on hosts that are all alike.

    Attributes:
        devices: how many.
        per_host: how many of them a host has.
        memory: bytes of one.
        link: bytes per second from a device to another one of the same host; stages of a pipeline
            are on one host.
        exchange: bytes per second at which devices of a host add up their gradients.
        network: bytes per second that a host sends to others.
        latency: seconds until a message between hosts has begun to arrive.
        update: bytes of weights per second that an optimizer updates.
        host_action: seconds of the host for each action of a pipeline.
    """

    devices: int
    per_host: int
    memory: float
    link: float
    exchange: float
    network: float = 3.125e9
    latency: float = 30e-6
    update: float = 1e9
    host_action: float = 250e-6

    def exchange_seconds(self, replicas: int, stages: int, size: float) -> float:
        """Return how long `replicas` take to add up gradients of so many bytes.

        Each device sends and receives 2 (n - 1) / n of them, n being the devices that take part:
        first those of a host among each other, then hosts, which share what is left over their
        devices. That takes 2 log2(hosts) messages, one after the other.
        """
        if replicas == 1 or not size:
            return 0.0
        together = min(replicas, max(1, self.per_host // stages))
        hosts = math.ceil(replicas / together)
        seconds = 2 * (together - 1) / together * size / self.exchange
        if hosts > 1:
            # All stages of a host share its network.
            seconds += 2 * (hosts - 1) / hosts * size * stages / self.network
            seconds += 2 * math.log2(hosts) * self.latency
        return seconds
