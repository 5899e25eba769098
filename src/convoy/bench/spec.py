"""Benchmark specs: YAML files of commands, their variants, and the metrics in their output."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from convoy.configuration import Configuration, ConfigurationError, Whole, read, read_yaml
from convoy_command.parser import suggestion
from pydantic import BeforeValidator, Field, StrictStr

# Entries with this in their name only hold fields that others share by YAML anchors.
SHARED = "options"
# Entries with this in their name train to convergence and run only on request.
CONVERGENCE = "_conv"

# Fields of a benchmark, by their names in a notebook's own mapping.
NOTEBOOK_FIELDS = {"file": "notebook", "working_directory": "location"}
# Fields for readers, or for tools that build a whole environment.
UNUSED = (
    "description",
    "output",
    "generated",
    "synthetic",
    "repository",
    "required_apt_packages",
    "requirements_path",
)

Variant = Mapping[str, str]
"""Parameters by name."""


class SpecError(ConfigurationError):
    """A spec or a request that cannot be run."""


def _pattern(expression: Any) -> re.Pattern[str]:
    try:
        pattern = re.compile(expression)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"{expression!r} is not a regular expression: {error}. Correct it."
        ) from None
    if pattern.groups != 1:
        raise ValueError(
            f"{expression!r} has {pattern.groups} groups. Put ( ) around the number only."
        )
    return pattern


def _variants(parameters: Any) -> list[Variant]:
    """Return the parameters of each variant: all combinations of a mapping, or a table's rows."""
    if isinstance(parameters, Mapping):
        choices = [_choices(value) for value in parameters.values()]
        return [dict(zip(parameters, row, strict=True)) for row in product(*choices)]
    if isinstance(parameters, list) and len(parameters) > 1:
        names, *rows = [_choices(row) for row in parameters]
        for row in rows:
            if len(row) != len(names):
                raise ValueError(
                    f"the row {row} has {len(row)} values for {len(names)} names, "
                    f"{', '.join(names)}. Write one for each."
                )
        return [dict(zip(names, row, strict=True)) for row in rows]
    raise ValueError(
        f"{parameters!r} is not a set of parameters. Write a mapping of names to values, such as "
        "'a: 1, 2', or a list of rows, the first with the names."
    )


def _choices(value: Any) -> list[str]:
    items = value if isinstance(value, list) else str(value).split(",")
    return [str(item).strip() for item in items]


Reduction = Literal["mean", "final", "min", "value"]
Seconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Metric(Configuration):
    """A number in the output of a command.

    Attributes:
        regexp: regular expression with one group.
        skip: number of the worst values that a mean ignores.
        reduction_type: reduction of several values to one; `"value"` takes the first.
    """

    regexp: Annotated[re.Pattern[str], BeforeValidator(_pattern)]
    skip: Annotated[Whole, Field(ge=0)] = 0
    reduction_type: Reduction = "mean"


@dataclass(frozen=True)
class DerivedMetric(Configuration):
    """A number computed from others.

    Attributes:
        expr: Python expression with `{metric}` and `{parameter}`.
        reduction_type: name of the value in the results.
    """

    expr: str
    reduction_type: Reduction = "mean"


@dataclass(frozen=True)
class Benchmark(Configuration):
    """An entry of a spec.

    Attributes:
        name: key of the entry.
        spec: path of the spec.
        cmd: command with `{parameter}` and `$VARIABLE`.
        notebook: path of a notebook to execute instead of a command.
        parameters: parameters of each variant.
        data: metrics in the output, by name.
        derived: metrics computed from others, by name.
        env: environment variables of the command.
        location: folder to run in.
        timeout: time limit in seconds.
        allow_wandb: whether flags that begin with `--wandb` are kept.
        requirements_file: file of packages that pip installs first.
    """

    name: str
    spec: Path
    cmd: StrictStr = ""
    notebook: Path | None = None
    parameters: Annotated[tuple[Variant, ...], BeforeValidator(_variants)] = ({},)
    data: Mapping[str, Metric] = field(default_factory=dict)
    derived: Mapping[str, DerivedMetric] = field(default_factory=dict)
    env: Mapping[str, Annotated[str, BeforeValidator(str)]] = field(default_factory=dict)
    location: Path = Path()
    timeout: Seconds | None = None
    allow_wandb: bool = False
    requirements_file: Path | None = None

    def __post_init__(self) -> None:
        if bool(self.cmd) == bool(self.notebook):
            has = "both cmd and" if self.cmd else "neither cmd nor"
            raise ValueError(f"it has {has} notebook. Write one of them.")
        if not self.location.is_dir():
            raise ValueError(f"there is no folder {self.location}. Correct location.")
        for file in (self.notebook, self.requirements_file):
            if file is not None and not file.is_file():
                raise ValueError(f"there is no file {file}. Correct its path.")


def read_benchmarks(
    specs: Sequence[Path], names: Sequence[str] = (), *, include_convergence: bool = False
) -> list[Benchmark]:
    """Return the selected benchmarks of some specs, in the requested order.

    Args:
        specs: paths of the specs.
        names: names of the benchmarks; by default all but shared and convergence entries.
        include_convergence: whether the default includes convergence entries.

    Raises:
        SpecError: with a line for each problem.
    """
    problems: list[str] = []
    entries: dict[str, tuple[Path, Any]] = {}
    for spec in specs:
        try:
            for name, entry in read_yaml(spec).items():
                if name in entries and SHARED not in name:
                    problems.append(f"{spec}: {name!r} is in {entries[name][0]} too. Rename one.")
                entries[name] = spec, entry
        except ConfigurationError as error:
            problems.append(str(error))
    known = [name for name in entries if SHARED not in name]
    if not names:
        names = [n for n in known if include_convergence or CONVERGENCE not in n]
        if not names and not problems:
            problems.append(f"{', '.join(map(str, specs))}: there is no benchmark to run.")
    benchmarks = []
    for name in dict.fromkeys(names):
        if name in known:
            spec, entry = entries[name]
            try:
                benchmarks.append(read_benchmark(name, entry, spec))
            except SpecError as error:
                problems.append(str(error))
        elif known or not problems:
            problems.append(f"--benchmark {name} is unknown{suggestion(name, known)}")
    if problems:
        raise SpecError("\n".join(problems))
    return benchmarks


def read_benchmark(name: str, entry: Any, spec: Path) -> Benchmark:
    """Return a benchmark from an entry of a spec.

    Args:
        name: key of the entry.
        entry: fields of the entry; those without a value and those in `UNUSED` are ignored.
        spec: path of the spec, to whose folder `location` is relative.

    Raises:
        SpecError: in one line that names the spec and the entry.
    """
    where = f"{spec}: {name}: "
    if not isinstance(entry, Mapping):
        raise SpecError(f"{where}{entry!r} is not a mapping. Write fields, such as cmd, in it.")
    fields = {k: value for k, value in entry.items() if value is not None and k not in UNUSED}
    if isinstance(fields.get("notebook"), Mapping):
        settings = fields.pop("notebook")
        fields |= {NOTEBOOK_FIELDS.get(key, key): value for key, value in settings.items()}
    fields["location"] = spec.parent / str(fields.get("location", "."))
    for key in ("notebook", "requirements_file"):
        if key in fields:
            fields[key] = (fields["location"] / str(fields[key])).resolve()
    try:
        return read(Benchmark, fields | {"name": name, "spec": spec}, where)
    except ConfigurationError as error:
        raise SpecError(str(error)) from None


def variant_name(benchmark: str, parameters: Variant) -> str:
    return benchmark + "".join(f"_{key}_{parameters[key]}" for key in sorted(parameters))
