"""`convoy plan`: finds the fastest parallel configuration of a model."""

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import keras
from convoy import devices as device_choice
from convoy import precision as precisions
from convoy.cli.train import parse
from convoy.compile.console import Console
from convoy.compile.session import compile_run
from convoy.compile.sources import run_training
from convoy.compile.targets import Target, parse_target
from convoy.compile.toolchain import open_target
from convoy.compile_target import CompileTarget
from convoy.configuration import add_flags, read
from convoy.cpu import threads
from convoy.data.catalog import DATASETS
from convoy.pipeline.balance.layer_costs import transfer_seconds
from convoy.plan import machine as machines
from convoy.plan import output
from convoy.plan.compiled import CompiledStep, compiled_step, search_compiled
from convoy.plan.link_speeds import target_machine
from convoy.plan.machine import Machine
from convoy.plan.options import PER_HOST, SLOTS, PlanOptions
from convoy.plan.predict import ParallelConfiguration, Predictor
from convoy.plan.profile import Profile, estimate_profile, measure_profile
from convoy.plan.search import SearchResult, search
from convoy.train.models import find_model, make_model
from convoy.units import format_count, format_number
from convoy_command.parser import Parser, failed

PROGRAM = "convoy plan"
LARGEST_MEASURED = 64
# Models of the error message that there is none.
EXAMPLES = ("cifar_resnet8", "resnet50", "MobileNetV2")
# Accumulated micro-batches in a program that is compiled.
MAX_ACCUMULATED = 2


def make_parser() -> Parser:
    description = "Find the fastest parallel configuration of a model."
    parser = Parser(prog=PROGRAM, description=description)
    add_flags(parser, PlanOptions)
    return parser


def main(words: Sequence[str]) -> int:
    """Print the fastest parallel configurations of a model.

    Returns:
        0, or 1 if nothing fits, or 2 if the options are invalid.
    """
    flags = vars(make_parser().parse_args(words))
    try:
        if "model" not in flags:
            raise ValueError(f"--model is missing. Pass for example {', '.join(EXAMPLES)}.")
        options = read(PlanOptions, flags, flags=True)
        target = parse_target(options.target) if options.target else None
        opened = open_target(target) if target else None
        devices = () if target else local_devices(max(options.devices))
        model, dataset = build_model(options)
        common = common_flags(options, dataset)
        print_model(options, model, dataset)
        if target and opened:
            profile, machine, compiled = compiled_costs(model, target, opened, options, common)
        else:
            profile, machine = find_costs(model, devices, options)
            compiled = {}
    except ValueError as error:
        return failed(PROGRAM, error, 2)
    counts = options.devices or (machine.devices,)
    results: list[tuple[Machine, SearchResult]] = []
    for count in counts:
        per_host = min(count, machine.per_host if target else options.devices_per_host or PER_HOST)
        own = replace(machine, devices=count, per_host=per_host)
        predictor = Predictor(profile, own, SLOTS[options.optimizer], compiled)
        _log(f"comparing configurations of {format_count(count, 'device')}")
        found = search(predictor, options.global_batch, None if options.csv else options.best)
        results.append((own, found))
        if len(counts) == 1:
            print_best(predictor, found, common, options)
    if len(counts) > 1:
        print(output.assumptions(results[-1][0], profile.source), end="\n\n")
        print(output.table([found.best[0] for _, found in results if found.best]))
    for own, found in results:
        if not found.best:
            print(f"{format_count(own.devices, 'device')}: {output.nothing_fits(found, own)}")
    if options.page:
        options.page.write_text(output.markdown(options, profile, results))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["devices", *output.CSV_COLUMNS])
            for own, found in results:
                writer.writerows([own.devices, *output.csv_row(one)] for one in found.best)
    return 0 if all(found.best for _, found in results) else 1


def print_best(
    predictor: Predictor, found: SearchResult, common: output.Flags, options: PlanOptions
) -> None:
    """Print the best configurations, and the command and timeline of the first."""
    machine = predictor.machine
    print(output.assumptions(machine, predictor.profile.source), end="\n\n")
    if not found.best:
        return
    print(f"The best of {found.fitting} that fit; {found.too_large} do not.")
    print(output.table(found.best[: options.best]), end="\n\n")
    best = found.best[0]
    flags = output.training_flags(best, predictor.profile, common)
    print(output.training_command(best, flags, machine), end="\n\n")
    print(output.recipe(flags, f"{options.model.replace(':', '_')}_{machine.devices}"))
    print(output.timeline(predictor, best))


def build_model(options: PlanOptions) -> tuple[keras.Model, str]:
    """Return the model and the name of its dataset."""
    name = options.model
    fitting = "cifar10" if name.startswith(("cifar", "toy")) else "imagenet"
    dataset = options.dataset or ("mnist" if name.startswith("mnist") else fitting)
    find_model(name)
    _log(f"making {name}")
    with precisions.find(options.precision).scope():
        return make_model(name, DATASETS[dataset].shape, DATASETS[dataset].classes), dataset


def common_flags(options: PlanOptions, dataset: str) -> output.Flags:
    """Return the flags of `convoy train` that all configurations share."""
    common: output.Flags = {
        "model": options.model,
        "dataset": dataset,
        "precision": options.precision,
        "optimizer": options.optimizer,
    }
    if options.target:
        # Pixels are bytes, which the device normalises.
        common |= {"accelerator-side-preprocess": True, "eight-bit-transfer": True}
    return common


def print_model(options: PlanOptions, model: keras.Model, dataset: str) -> None:
    weights = sum(variable.value.nbytes for variable in model.trainable_variables) / 1e6
    print(f"{options.model}: {weights:,.1f} MB of weights, {DATASETS[dataset].shape} images")


def compiled_costs(
    model: keras.Model,
    target: Target,
    opened: CompileTarget,
    options: PlanOptions,
    common: output.Flags,
) -> tuple[Profile, Machine, dict[ParallelConfiguration, float]]:
    """Return the costs of a model from programs that are compiled for a target.

    Returns:
        The profile, the devices, and the bytes of each configuration that was compiled.
    """
    machine = target_machine(target, options.latency)
    source = f"estimated for {target.name}"
    estimated = estimate_profile(model, target.flops, target.bandwidth, source)
    slots = SLOTS[options.optimizer]

    def compile_one(predictor: Predictor, configuration: ParallelConfiguration) -> CompiledStep:
        # The program for more accumulated micro-batches is the same, with more data.
        fewest = min(configuration.gradient_accumulation, MAX_ACCUMULATED)
        one = replace(configuration, gradient_accumulation=fewest)
        flags = output.training_flags(predictor.predict(one), predictor.profile, common)
        flags = output.with_named_splits(flags, predictor.profile)
        words = output.flag_words(flags | {"validation": "False", "synthetic-data": "host"})
        with Console() as console:
            run = partial(run_training, parse(words, PROGRAM), console.line)
            result = compile_run(target, opened, run, console)
        return compiled_step(configuration, one.gradient_accumulation, result)

    profile, steps = search_compiled(
        lambda profile, known: Predictor(profile, machine, slots, known),
        estimated,
        target,
        options.global_batch,
        options.best,
        compile_one,
    )
    for step in steps:
        print(output.describe_compiled(step, target))
    return profile, machine, {step.configuration: step.memory for step in steps}


def find_costs(
    model: keras.Model, devices: tuple[jax.Device, ...], options: PlanOptions
) -> tuple[Profile, Machine]:
    """Return the cost profile of a model, and the speed of the devices."""
    here = f"{len(devices)} x {devices[0].platform} here"
    flops, bandwidth = options.device_flops, options.device_bandwidth
    if flops is None or bandwidth is None:
        _log(f"measuring how fast {here} compute and move data")
        measured_flops, measured_bandwidth = machines.compute_speed(devices)
        flops, bandwidth = flops or measured_flops, bandwidth or measured_bandwidth
    given = options.device_flops or options.device_bandwidth
    source = (
        f"estimated from {flops / 1e9:,.0f} GFLOP/s and "
        f"{format_number(bandwidth / 1e9, 3)} GB/s of a device"
        f"{'' if given else f' ({here}, measured)'}"
    )
    profile = estimate_profile(model, flops, bandwidth, source)
    if options.measure:
        largest = min(LARGEST_MEASURED, options.global_batch)
        profile = measure_profile(
            model, profile, devices, largest=largest, log=lambda what: _log(f"measuring {what}")
        )
    _log("measuring transfers, updates and exchanges of weights")
    rate = transfer_seconds(devices)
    link = options.link or (1 / rate if rate else bandwidth)
    update = bandwidth / 5 if given else machines.update_speed(devices)
    exchange = options.link or (link if given else machines.exchange_speed(devices))
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


def local_devices(count: int) -> tuple[jax.Device, ...]:
    """Return up to `count` devices of this machine; on a CPU, one per core."""
    cores = min(count, threads.cores())
    device_choice.provide_virtual(cores)  # before JAX starts
    if jax.default_backend() == "cpu":
        return device_choice.select(cores)
    return tuple(jax.devices()[:count])


def _log(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)
