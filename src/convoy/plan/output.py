"""Output of `convoy plan`: tables, a Markdown page, the training command and its recipe."""

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path

import yaml
from convoy.bench.results import git_commit
from convoy.compile.targets import Target
from convoy.pipeline import render_text
from convoy.plan.compiled import CompiledStep
from convoy.plan.machine import Machine
from convoy.plan.options import PlanOptions
from convoy.plan.predict import Prediction, Predictor
from convoy.plan.profile import Profile
from convoy.plan.search import SearchResult
from convoy.units import format_count, format_number, format_seconds, format_table
from convoy.versions import installed_versions

COLUMNS: dict[str, Callable[[Prediction], str]] = {
    "replicas": lambda one: str(one.configuration.replicas),
    "stages": lambda one: str(one.configuration.stages),
    "micro-batch": lambda one: str(one.configuration.micro_batch),
    "accumulated": lambda one: str(one.configuration.gradient_accumulation),
    "schedule": lambda one: one.configuration.schedule or "-",
    "checkpointing": lambda one: "yes" if one.configuration.activation_checkpointing else "no",
    "samples/s": lambda one: format_number(one.throughput),
    "bubble": lambda one: f"{one.bubble:.1%}",
    "GB/device": lambda one: f"{one.memory / 1e9:.2f}",
    "update": lambda one: format_seconds(one.seconds, digits=4),
    "exchange": lambda one: f"{one.exchange / one.seconds:.1%}",
}
"""The columns of a table, and the cell of a prediction in each."""
# A CSV file has plain numbers in one unit.
CSV_COLUMNS = tuple("ms/update" if column == "update" else column for column in COLUMNS)
PAGE = Path(__file__).with_name("page.md")
WIDTH = 100
AUTO_SPLITS = ["auto", "2"]
LOCAL_SPEEDS = "Contention between the devices of a host is no higher than on this machine."
TARGET_SPEEDS = (
    "The time of a layer is the longer of two times: that of its operations at the device's peak\n"
    "  speed, and that of its bytes at the memory bandwidth. No program reaches peak speed, and\n"
    "  fused operations move less data. Communication does not overlap with computation."
)

Flags = dict[str, str | int | bool | list[str] | list[int]]


def row(prediction: Prediction) -> tuple[str, ...]:
    return tuple(cell(prediction) for cell in COLUMNS.values())


def csv_row(prediction: Prediction) -> tuple[str, ...]:
    plain = {
        "samples/s": f"{prediction.throughput:.3f}",
        "update": f"{1e3 * prediction.seconds:.3f}",
    }
    cells = zip(COLUMNS, row(prediction), strict=True)
    return tuple(plain.get(column, cell) for column, cell in cells)


def table(predictions: Sequence[Prediction]) -> str:
    return "\n".join(format_table([tuple(COLUMNS), *map(row, predictions)], str.rjust))


def assumptions(machine: Machine, source: str) -> str:
    """Return the assumptions of a prediction: the source of the costs, and the devices."""

    def rate(value: float) -> str:
        return f"{format_number(value / 1e9, 3)} GB/s"

    is_host = machine.group == machine.per_host
    group = "a host" if is_host else f"{machine.group} connected devices"
    lines = [
        f"costs       {source}",
        f"devices     {machine.devices} of {machine.memory / 1e9:.3g} GB, "
        f"{machine.per_host} on each of {format_count(machine.hosts, 'host')}",
        f"transfers   {rate(machine.link)} between stages; {rate(machine.exchange)} all-reduce on "
        f"{group}",
        f"update      {rate(machine.update)} of weights; {1e6 * machine.host_action:.0f} us of the "
        "host per pipeline action",
    ]
    if machine.devices > machine.group:
        between = "hosts" if is_host else "groups of connected devices"
        lines.append(
            f"network     {rate(machine.network)} and {1e6 * machine.latency:.0f} us between "
            f"{between}"
        )
    if machine.devices > 1:
        lines.append("overlap     none: gradients are exchanged after the last micro-batch")
    lines.append("not counted reading and decoding of images, checkpoints, compilation")
    return "\n".join(lines)


def timeline(predictor: Predictor, prediction: Prediction) -> str:
    """Render the timeline of one replica, for some of its micro-batches."""
    one = prediction.configuration
    if one.stages == 1:
        steps = " ".join(f"F{m} B{m}" for m in range(min(one.gradient_accumulation, 4)))
        return f"every device  {steps}{' ...' * (one.gradient_accumulation > 4)} exchange update"
    simulated = predictor.timeline(one, max_micro_batches=2 * one.stages)
    shortest = min(event.end - event.start for event in simulated.events)
    unit = max(shortest / 2, simulated.seconds / (WIDTH / 4))
    shown = min(one.gradient_accumulation, 2 * one.stages)
    title = f"{shown} of {one.gradient_accumulation} micro-batches, {1e3 * unit:.3g} ms a column"
    return "\n".join([title, *render_text(simulated, unit).splitlines()[:-1]])


def nothing_fits(found: SearchResult, machine: Machine) -> str:
    if found.smallest is None:
        return "No parallel configuration has this global batch on these devices."
    one, memory = found.smallest
    details = [
        f"{format_count(one.replicas, 'replica')} x {format_count(one.stages, 'stage')}",
        f"micro-batch {one.micro_batch}",
        *([one.schedule] if one.schedule else []),
        *(["activation checkpointing"] if one.activation_checkpointing else []),
    ]
    return (
        f"Nothing fits into {machine.memory / 1e9:.3g} GB: of "
        f"{format_count(found.too_large, 'configuration')}, the smallest takes "
        f"{memory / 1e9:.3g} GB on a device ({', '.join(details)}). "
        "Pass devices with more memory, more devices on a host, or a lower --precision."
    )


def markdown(
    options: PlanOptions, profile: Profile, results: Sequence[tuple[Machine, SearchResult]]
) -> str:
    """Return a page with the best configuration for each number of devices."""
    versions = installed_versions()
    first: float | None = None
    rows = []
    for machine, found in results:
        cells = [str(machine.devices), str(machine.hosts)]
        if found.best:
            each = found.best[0].throughput / machine.devices
            first = first or each
            cells += [*row(found.best[0]), f"{each / first:.0%}"]
        else:
            cells.append("nothing fits")
        rows.append(f"| {' | '.join(cells)} |")
    times = [f"| {n} | {format_number(1e3 * seconds)} |" for n, seconds in profile.step_times]
    return PAGE.read_text().format(
        model=options.model,
        fewest=results[0][0].devices,
        most=results[-1][0].devices,
        date=datetime.now(UTC).date(),
        command=shlex.join(sys.argv[2:]),
        commit=git_commit()[:7],
        jax=versions["jax"],
        keras=versions["keras"],
        columns=" | ".join(COLUMNS),
        rule="|---" * (len(COLUMNS) + 3),
        rows="\n".join(rows),
        first=results[0][0].devices,
        global_batch=options.global_batch,
        assumptions=assumptions(results[-1][0], profile.source),
        times="\n".join(times),
        conditions="estimated" if options.target else "with all devices of this machine busy",
        speeds=TARGET_SPEEDS if options.target else LOCAL_SPEEDS,
    )


def training_flags(prediction: Prediction, profile: Profile, common: Flags) -> Flags:
    """Return the flags of `convoy train` for a configuration.

    Args:
        prediction: prediction for the configuration.
        profile: profile with the names of the layers.
        common: flags of the model, the dataset and the like.
    """
    one = prediction.configuration
    flags = common | {
        "num-replicas": one.replicas,
        "micro-batch-size": one.micro_batch,
        "gradient-accumulation": one.gradient_accumulation,
    }
    if one.stages > 1:
        flags["pipeline-splits"] = [profile.names[cut] for cut in prediction.cuts]
        flags["pipeline-schedule"] = one.schedule
    elif one.activation_checkpointing:
        # With all stages on one device, a model trains without stages, with activation
        # checkpointing.
        flags["pipeline-splits"] = AUTO_SPLITS
        flags["device-mapping"] = [0, 0]
    if one.activation_checkpointing:
        flags["activation-checkpointing"] = True
    return flags


def with_named_splits(flags: Flags, profile: Profile) -> Flags:
    """Return flags with layer names instead of `auto`, which needs devices that can be timed."""
    if flags.get("pipeline-splits") != AUTO_SPLITS:
        return flags
    before = [0.0, *accumulate(profile.time_shares)]
    middle = min(profile.allowed_cuts, key=lambda cut: abs(before[cut] - 0.5))
    return flags | {"pipeline-splits": [profile.names[middle]]}


def flag_words(flags: Flags) -> list[str]:
    """Return flags as the words of a command line."""
    words: list[str] = []
    for name, value in flags.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        words += [f"--{name}", *map(str, values)]
    return words


def describe_compiled(step: CompiledStep, target: Target) -> str:
    """Return a line about a configuration that was compiled."""
    one = step.configuration
    work = f", {step.flops / 1e12:.3g} TFLOP per micro-batch" if step.flops else ""
    return (
        f"compiled for {target.name}: {one.replicas} x {format_count(one.stages, 'stage')}, "
        f"micro-batch {one.micro_batch}: {step.memory / 1e9:.2f} GB of {target.memory / 1e9:.3g} GB"
        f"{work}"
    )


def training_command(prediction: Prediction, flags: Flags, machine: Machine) -> str:
    """Return the command line for one host or for several."""
    words = flag_words(flags)
    one = prediction.configuration
    if one.devices <= machine.per_host:
        return f"convoy train {shlex.join(words)}"
    on_a_host = machine.per_host // one.stages
    launch = ["--num-instances", str(math.ceil(one.replicas / on_a_host))]
    launch += ["--num-replicas", str(one.replicas)]
    if one.stages > 1:
        launch += ["--devices-per-replica", str(one.stages)]
    return f"convoy launch {shlex.join(launch)} examples/cnns/train.py {shlex.join(words)}"


def recipe(flags: Flags, name: str) -> str:
    """Return the flags as the lines of a recipe file."""
    return yaml.safe_dump({name: flags}, sort_keys=False, default_flow_style=False)
