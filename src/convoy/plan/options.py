"""Options of `convoy plan`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from convoy.configuration import Configuration, Count, Option
from convoy.data.catalog import DATASETS
from convoy.precision import PRECISIONS
from convoy.units import parse_bytes, parse_bytes_per_second, parse_flops, parse_seconds
from pydantic import BeforeValidator

Size = Annotated[float, BeforeValidator(parse_bytes)]
Rate = Annotated[float, BeforeValidator(parse_bytes_per_second)]
Flops = Annotated[float, BeforeValidator(parse_flops)]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]

# Slots per weight of each optimizer.
SLOTS = {"sgd": 1, "lars": 1, "rmsprop": 2, "adam": 2, "adamw": 2}
# Default number of devices per host; all stages of a replica are on one.
PER_HOST = 16


@dataclass(frozen=True)
class PlanOptions(Configuration, all_flags=True):
    """Flags of `convoy plan`.

    Attributes:
        model: model, as for convoy train
        target: devices to compile for, such as tpu:v5e:8x8 or gpu:h100:8
        devices: number of devices, or several numbers (default: those of the target)
        global_batch: samples per weight update
        dataset: dataset of the images (default: by the model)
        memory: device memory, such as 8GB (default: as here)
        precision: precision (default: 32.32)
        optimizer: optimizer (default: sgd)
        measure: time the model here instead of estimating it

    other devices:
        devices_per_host: devices of a host (default: 16)
        device_flops: speed of a device, such as 100TFLOPS
        device_bandwidth: memory bandwidth, such as 1TB/s
        link: bandwidth between devices, such as 50GB/s
        network: bandwidth between hosts (default: 25Gbit/s)
        latency: latency between groups of devices (default: 30us)

    output:
        best: number of configurations (default: 5)
        csv: file for every configuration
        page: Markdown file for the table
    """

    model: Annotated[str, Option(aliases=("model-name",))]
    global_batch: Annotated[Count, Option(aliases=("global-batch-size",))]
    target: str | None = None
    devices: tuple[Count, ...] = ()
    dataset: Annotated[str | None, Option(choices=DATASETS)] = None
    memory: Size | None = None
    precision: Annotated[str, Option(choices=PRECISIONS)] = "32.32"
    optimizer: Annotated[str, Option(choices=SLOTS)] = "sgd"
    measure: bool = False
    devices_per_host: Count | None = None
    device_flops: Flops | None = None
    device_bandwidth: Rate | None = None
    link: Rate | None = None
    network: Rate = 3.125e9
    latency: Seconds = 30e-6
    best: Count = 5
    csv: Path | None = None
    page: Path | None = None

    def __post_init__(self) -> None:
        if self.target is None and not self.devices:
            raise ValueError("--devices is missing. Pass a number of devices, or a --target.")
        if self.target is not None:
            self._check_target()
        if self.measure and (self.device_flops or self.device_bandwidth):
            raise ValueError(
                "--measure times the devices of this machine, but --device-flops or "
                "--device-bandwidth describes other devices. Leave one of them out."
            )

    def _check_target(self) -> None:
        described = {
            "--measure": self.measure,
            "--memory": self.memory,
            "--devices-per-host": self.devices_per_host,
            "--device-flops": self.device_flops,
            "--device-bandwidth": self.device_bandwidth,
            "--link": self.link,
        }
        if given := [name for name, value in described.items() if value]:
            raise ValueError(
                f"--target {self.target} has its own {given[0].removeprefix('--')}. Leave "
                f"{given[0]} out, or describe the devices without --target."
            )
        if PRECISIONS[self.precision].compute_dtype == "float32":
            raise ValueError(
                f"--precision {self.precision}: the speeds of a target are those of 16 bits. Pass "
                "for example --precision mixed_bfloat16."
            )
