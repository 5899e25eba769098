"""`convoy plan`: how to divide a model over devices."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import keras
from convoy import devices as device_choice
from convoy import precision as precisions
from convoy.cpu import threads
from convoy.data.catalog import DATASETS
from convoy.pipeline.balance.layer_costs import transfer_seconds
from convoy.plan import page, recipe, show, timing
from convoy.plan.estimate import estimate
from convoy.plan.machine import Machine
from convoy.plan.measured import measured
from convoy.plan.predict import Predictor
from convoy.plan.profile import Profile
from convoy.plan.search import Found, search
from convoy.train.models import find_model, make_model
from convoy.units import (
    format_count,
    format_number,
    parse_bytes,
    parse_bytes_per_second,
    parse_flops,
    parse_seconds,
)
from convoy_command.parser import Parser

PROGRAM = "convoy plan"
SLOTS = {"sgd": 1, "lars": 1, "rmsprop": 2, "adam": 2, "adamw": 2}
# Most machines have fewer; stages are on one host.
PER_HOST = 16
LARGEST_MEASURED = 64


def make_parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="How to divide a model over devices.")
    add = parser.add_argument
    add("--model", "--model-name", required=True, help="as for convoy train")
    add("--dataset", choices=DATASETS, help="whose images (default: what the model is made for)")
    add("--devices", type=int, nargs="+", required=True, help="how many; several make a table")
    add("--global-batch", "--global-batch-size", type=int, required=True, help="per weight update")
    add("--memory", type=parse_bytes, help="of a device, as 8GB (default: what one has here)")
    add("--precision", default="32.32", choices=precisions.PRECISIONS, help="default: 32.32")
    add("--optimizer", default="sgd", choices=SLOTS, help="for its memory (default: sgd)")
    add("--measure", action="store_true", help="time the model here, instead of estimating it")
    group = parser.add_argument_group("devices that are not here")
    group.add_argument("--devices-per-host", type=int, metavar="N", help=f"default: {PER_HOST}")
    group.add_argument("--device-flops", type=parse_flops, metavar="X", help="as 100TFLOPS")
    group.add_argument(
        "--device-bandwidth", type=parse_bytes_per_second, metavar="X", help="as 1TB/s"
    )
    group.add_argument(
        "--link", type=parse_bytes_per_second, metavar="X", help="between devices, as 50GB/s"
    )
    group.add_argument(
        "--network", type=parse_bytes_per_second, default=3.125e9, metavar="X", help="25Gbit/s"
    )
    group.add_argument("--latency", type=parse_seconds, default=30e-6, metavar="X", help="30us")
    group = parser.add_argument_group("what is shown")
    group.add_argument("--best", type=int, default=5, metavar="N", help="default: 5")
    group.add_argument("--csv", type=Path, help="write every configuration to a file")
    group.add_argument("--page", type=Path, help="write the table to a Markdown file")
    return parser


def main(words: Sequence[str]) -> int:
    """Say how to divide a model over devices.

    Returns:
        0, or 1 if nothing fits, or 2 if what was asked for cannot be understood.
    """
    options = make_parser().parse_args(words)
    try:
        check(options)
        devices = local_devices(max(options.devices))
        model, dataset = make(options)
        profile, machine = costs(model, devices, options)
    except ValueError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    weights = profile.weight_bytes / 1e6
    print(f"{options.model}: {weights:,.1f} MB of weights, {DATASETS[dataset].shape} images")
    common = {"model": options.model, "dataset": dataset, "precision": options.precision}
    common["optimizer"] = options.optimizer
    results: list[tuple[Machine, Found]] = []
    for count in options.devices:
        per_host = min(count, options.devices_per_host or PER_HOST)
        own = replace(machine, devices=count, per_host=per_host)
        predictor = Predictor(profile, own, SLOTS[options.optimizer])
        _tell(f"comparing divisions over {format_count(count, 'device')}")
        found = search(predictor, options.global_batch, None if options.csv else options.best)
        results.append((own, found))
        if len(options.devices) == 1:
            tell(predictor, found, common, options)
    if len(options.devices) > 1:
        print(show.assumptions(results[-1][0], profile.source), end="\n\n")
        print(show.table([found.best[0] for _, found in results if found.best]))
    for own, found in results:
        if not found.best:
            print(f"{format_count(own.devices, 'device')}: {show.nothing_fits(found, own)}")
    if options.page:
        options.page.write_text(page.markdown(options, profile, results))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["devices", *show.FILE_COLUMNS])
            for own, found in results:
                writer.writerows([own.devices, *show.file_row(one)] for one in found.best)
    return 0 if all(found.best for _, found in results) else 1


def tell(
    predictor: Predictor, found: Found, common: dict[str, Any], options: argparse.Namespace
) -> None:
    """Print the best configurations, and how to run the best one."""
    machine = predictor.machine
    print(show.assumptions(machine, predictor.profile.source), end="\n\n")
    if not found.best:
        return
    print(f"The best of {found.fitting} that fit; {found.too_large} do not.")
    print(show.table(found.best[: options.best]), end="\n\n")
    best = found.best[0]
    flags = recipe.flags(best, predictor.profile, common)
    print(recipe.command(best, flags, machine), end="\n\n")
    print(recipe.recipe(flags, f"{options.model.replace(':', '_')}_{machine.devices}"))
    print(show.picture(predictor, best))


def check(options: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing.

    Raises:
        ValueError: in one line.
    """
    numbers = {
        "--devices": min(options.devices),
        "--global-batch": options.global_batch,
        "--devices-per-host": options.devices_per_host or 1,
        "--best": options.best,
    }
    for flag, value in numbers.items():
        if value < 1:
            raise ValueError(f"{flag} {value}: pass 1 or more.")
    if options.measure and (options.device_flops or options.device_bandwidth):
        raise ValueError(
            "--measure times the devices that are here; --device-flops and --device-bandwidth "
            "describe others. Pass one or the other."
        )


def make(options: argparse.Namespace) -> tuple[keras.Model, str]:
    """Return the model, and the data set whose images it takes."""
    name = options.model
    fitting = "cifar10" if name.startswith(("cifar", "toy")) else "imagenet"
    dataset = options.dataset or ("mnist" if name.startswith("mnist") else fitting)
    find_model(name)
    _tell(f"making {name}")
    with precisions.find(options.precision).scope():
        return make_model(name, DATASETS[dataset].shape, DATASETS[dataset].classes), dataset


def costs(
    model: keras.Model, devices: tuple[jax.Device, ...], options: argparse.Namespace
) -> tuple[Profile, Machine]:
    """Return what the model costs, and what is known of the devices."""
    here = f"{len(devices)} x {devices[0].platform} here"
    flops, bandwidth = options.device_flops, options.device_bandwidth
    if flops is None or bandwidth is None:
        _say(f"how fast {here} compute and move data")
        measured_flops, measured_bandwidth = timing.speed(devices)
        flops, bandwidth = flops or measured_flops, bandwidth or measured_bandwidth
    given = options.device_flops or options.device_bandwidth
    source = (
        f"estimated from {flops / 1e9:,.0f} GFLOP/s and "
        f"{format_number(bandwidth / 1e9, 3)} GB/s of a device"
        f"{'' if given else f' ({here}, measured)'}"
    )
    profile = estimate(model, flops, bandwidth, source)
    if options.measure:
        largest = min(LARGEST_MEASURED, options.global_batch)
        profile = measured(model, profile, devices, largest=largest, say=_say)
    _say("transfers, updates and exchanges of weights")
    rate = transfer_seconds(devices)
    link = options.link or (1 / rate if rate else bandwidth)
    update = bandwidth / 5 if given else timing.update_speed(devices)
    exchange = options.link or (link if given else timing.exchange_speed(devices))
    machine = Machine(
        devices=max(options.devices),
        per_host=len(devices),
        memory=options.memory or device_choice.memory(devices),
        link=link,
        exchange=exchange if math.isfinite(exchange) else link,
        network=options.network,
        latency=options.latency,
        update=update,
    )
    return profile, machine


def local_devices(asked: int) -> tuple[jax.Device, ...]:
    """Return the devices that are here, of so many that are asked for; a core each of a CPU."""
    cores = min(asked, threads.cores())
    device_choice.provide_virtual(cores)  # before JAX starts
    if jax.default_backend() == "cpu":
        return device_choice.select(cores)
    return tuple(jax.devices()[:asked])


def _say(what: str) -> None:
    _tell(f"measuring {what}")


def _tell(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)
