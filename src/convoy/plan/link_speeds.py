"""Speeds of the links of devices that a target names, from the vendors' data sheets."""

from dataclasses import dataclass

from convoy.compile.targets import TPUS, Target
from convoy.plan.machine import Machine

GB = 1e9
GBIT = 1e9 / 8
# Number of arrays of the size of the weights that an update moves: it reads weights, gradients and
# momenta, and writes weights and momenta.
UPDATE_ARRAYS = 5


@dataclass(frozen=True)
class LinkSpeed:
    """Speeds of the links of one kind of device.

    Attributes:
        link: bytes per second that it sends over its links to other devices; half of the vendors'
            figure for both directions.
        network: bytes per second that a slice of TPUs, or the GPUs of a host, together send to
            others.
        source: origin of the numbers.
    """

    link: float
    network: float
    source: str


_CLOUD = "https://cloud.google.com/tpu/docs"
_DGX = "data sheet of NVIDIA's DGX"
LINKS = {
    # 400 GB/s in both directions; 6.4 Tbit/s of a pod's network.
    "v5e": LinkSpeed(200 * GB, 6400 * GBIT, f"{_CLOUD}/v5e"),
    # 1,200 GB/s in both directions; 50 Gbit/s of network for each chip of a slice.
    "v5p": LinkSpeed(600 * GB, 6144 * 50 * GBIT, f"{_CLOUD}/v5p"),
    # 800 GB/s in both directions; 25.6 Tbit/s of a pod's network.
    "v6e": LinkSpeed(400 * GB, 25600 * GBIT, f"{_CLOUD}/v6e"),
    # NVLink with 600 and 900 GB/s in both directions; 8 network cards of 200 or 400 Gbit/s.
    "a100": LinkSpeed(300 * GB, 8 * 200 * GBIT, f"{_DGX} A100 640GB"),
    "h100": LinkSpeed(450 * GB, 8 * 400 * GBIT, f"{_DGX} H100"),
    "h200": LinkSpeed(450 * GB, 8 * 400 * GBIT, f"{_DGX} H200"),
    # PCI Express 4.0 with 16 lanes; a host of Google's G2 machines has 100 Gbit/s.
    "l4": LinkSpeed(32 * GB, 100 * GBIT, "data sheet of NVIDIA's L4; Google's G2"),
}


def target_machine(target: Target, latency: float) -> Machine:
    """Return the devices of a target, with the speeds of its kind.

    Args:
        target: the target.
        latency: seconds before a message between groups of connected devices begins to arrive.
    """
    speed = LINKS[target.kind]
    per_host = target.devices // target.hosts
    return Machine(
        devices=target.devices,
        per_host=per_host,
        memory=target.memory,
        link=speed.link,
        exchange=speed.link,
        network=speed.network if target.platform == "tpu" else speed.network * per_host / 8,
        latency=latency,
        update=target.bandwidth / UPDATE_ARRAYS,
        connected=TPUS[target.kind].largest_slice if target.platform == "tpu" else per_host,
    )
