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

_ELSEWHERE = "devices that are not here"


@dataclass(frozen=True)
class PlanOptions(Configuration):
    """Flags of `convoy plan`."""

    model: Annotated[str, Option("model, as for convoy train", aliases=("model-name",))]
    devices: Annotated[tuple[Count, ...], Option("number of devices, or several")]
    global_batch: Annotated[
        Count, Option("samples per weight update", aliases=("global-batch-size",))
    ]
    dataset: Annotated[
        str | None, Option("dataset with the images (default: by the model)", choices=DATASETS)
    ] = None
    memory: Annotated[Size | None, Option("memory of a device, as 8GB (default: one here)")] = None
    precision: Annotated[str, Option("default: 32.32", choices=PRECISIONS)] = "32.32"
    optimizer: Annotated[str, Option("for its memory (default: sgd)", choices=SLOTS)] = "sgd"
    measure: Annotated[bool, Option("time the model here instead of estimating it")] = False
    devices_per_host: Annotated[
        Count | None, Option(f"devices of a host (default: {PER_HOST})", _ELSEWHERE)
    ] = None
    device_flops: Annotated[Flops | None, Option("speed, as 100TFLOPS", _ELSEWHERE)] = None
    device_bandwidth: Annotated[Rate | None, Option("of its memory, as 1TB/s", _ELSEWHERE)] = None
    link: Annotated[Rate | None, Option("between devices, as 50GB/s", _ELSEWHERE)] = None
    network: Annotated[Rate, Option("between hosts (default: 25Gbit/s)", _ELSEWHERE)] = 3.125e9
    latency: Annotated[Seconds, Option("between hosts (default: 30us)", _ELSEWHERE)] = 30e-6
    best: Annotated[Count, Option("number of configurations (default: 5)", "output")] = 5
    csv: Annotated[Path | None, Option("file for every configuration", "output")] = None
    page: Annotated[Path | None, Option("Markdown file for the table", "output")] = None

    def __post_init__(self) -> None:
        if self.measure and (self.device_flops or self.device_bandwidth):
            raise ValueError(
                "--measure times the devices that are here; --device-flops and --device-bandwidth "
                "describe others. Pass one or the other."
            )
