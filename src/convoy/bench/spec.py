"""Benchmark specs: what to run, in which variants, and what to read from what it prints."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

REDUCTIONS = ("mean", "final", "min", "value")
# Entries with this in their name hold what others share by YAML's anchors.
SHARED = "options"
# Entries with this in their name take long, and are run only where they are asked for.
CONVERGENCE = "_conv"

READ = (
    "cmd",
    "notebook",
    "parameters",
    "data",
    "derived",
    "env",
    "location",
    "timeout",
    "allow_wandb",
    "requirements_file",
)
# For people, or for machines that make a whole environment first.
NOT_READ = (
    "description",
    "output",
    "generated",
    "synthetic",
    "repository",
    "required_apt_packages",
    "requirements_path",
)


class SpecError(ValueError):
    """A spec, or what was asked of it, that cannot be run."""


@dataclass(frozen=True)
class Metric:
    """A figure in the output.

    Attributes:
        name: what it is called in the results.
        pattern: a regular expression with one group.
        skip: how many of the worst values do not count for a mean.
        reduction: how several values become one; one of `REDUCTIONS`.
    """

    name: str
    pattern: re.Pattern[str]
    skip: int
    reduction: str


@dataclass(frozen=True)
class Derived:
    """A figure that follows from others: an expression with `{metric}` and `{parameter}`."""

    name: str
    expression: str
    reduction: str


@dataclass(frozen=True)
class Benchmark:
    """An entry of a spec.

    Attributes:
        name: its key.
        file: the spec.
        command: as it was written, with `{parameter}` and `$VARIABLE`.
        notebook: a notebook to run instead.
        variants: the parameters of each.
        metrics: read from the output.
        derived: computed from them.
        environment: variables for the command.
        location: where it is run.
        timeout: seconds, if there is a limit.
        allow_wandb: whether flags that begin with `--wandb` stay.
        requirements: what pip installs before.
    """

    name: str
    file: Path
    command: str
    notebook: Path | None
    variants: tuple[Mapping[str, str], ...]
    metrics: tuple[Metric, ...]
    derived: tuple[Derived, ...]
    location: Path
    timeout: float | None
    environment: Mapping[str, str] = field(default_factory=dict)
    allow_wandb: bool = False
    requirements: Path | None = None


def read_benchmarks(
    files: Sequence[Path], names: Sequence[str] = (), *, include_convergence: bool = False
) -> list[Benchmark]:
    """Return the benchmarks of some specs that are to be run, in the order asked for.

    Args:
        files: the specs.
        names: which ones; by default all but those that only converge and those that are shared.
        include_convergence: whether those that converge are taken, too.

    Raises:
        SpecError: with a line for each thing that is wrong.
    """
    problems: list[str] = []
    entries: dict[str, tuple[Path, Any]] = {}
    for file in files:
        try:
            for name, entry in _entries(file).items():
                if name in entries and SHARED not in name:
                    problems.append(f"{file}: {name!r} is in {entries[name][0]} too. Rename one.")
                entries[name] = file, entry
        except SpecError as error:
            problems.append(str(error))
    runnable = [name for name in entries if SHARED not in name]
    if not names:
        names = [n for n in runnable if include_convergence or CONVERGENCE not in n]
        if not names and not problems:
            problems.append(f"{', '.join(map(str, files))}: there is no benchmark to run.")
    found = []
    for name in dict.fromkeys(names):
        if name in runnable:
            try:
                found.append(read_entry(name, entries[name][1], entries[name][0]))
            except SpecError as error:
                problems.append(str(error))
        elif runnable or not problems:
            problems.append(
                f"--benchmark {name}: there is none of this name{_near(name, runnable)}"
            )
    if problems:
        raise SpecError("\n".join(problems))
    return found


def read_entry(name: str, entry: Any, file: Path) -> Benchmark:
    """Check an entry of a spec.

    Raises:
        SpecError: in one line, with the file and the entry.
    """
    where = f"{file}: {name}"
    fields = _mapping(entry, where)
    for key in fields:
        if key not in READ + NOT_READ:
            raise SpecError(f"{where}: {key!r} is not a field of a benchmark{_near(key, READ)}")
    if ("cmd" in fields) == ("notebook" in fields):
        has = "both" if "cmd" in fields else "neither"
        raise SpecError(f"{where}: it has {has} of cmd and notebook. Write one of them.")
    notebook, timeout = fields.get("notebook"), fields.get("timeout")
    location = file.parent / str(fields.get("location", "."))
    if isinstance(notebook, dict):
        location = file.parent / str(notebook.get("working_directory", location))
        timeout = notebook.get("timeout", timeout)
        notebook = notebook.get("file")
    if not isinstance(fields.get("cmd", notebook), str):
        raise SpecError(f"{where}: cmd or the notebook's file is not a text. Write a command.")
    if not location.is_dir():
        raise SpecError(f"{where}: there is no folder {location}. Correct location.")
    requirements = fields.get("requirements_file")
    return Benchmark(
        name=name,
        file=file,
        command=fields.get("cmd", ""),
        notebook=None if notebook is None else _existing(location / notebook, where),
        variants=tuple(_variants(fields.get("parameters"), where)),
        metrics=tuple(_metrics(fields.get("data"), where)),
        derived=tuple(_derived(fields.get("derived"), where)),
        location=location,
        timeout=_timeout(timeout, where),
        environment={k: str(v) for k, v in _mapping(fields.get("env"), f"{where}: env").items()},
        allow_wandb=bool(fields.get("allow_wandb", False)),
        requirements=None if requirements is None else _existing(location / requirements, where),
    )


def variant_name(benchmark: str, parameters: Mapping[str, str]) -> str:
    return benchmark + "".join(f"_{key}_{parameters[key]}" for key in sorted(parameters))


def _entries(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise SpecError(f"{file}: the spec cannot be read: {reason}") from None
    if not isinstance(content, dict):
        raise SpecError(f"{file}: the spec does not map names to benchmarks. Write NAME: and cmd:.")
    return {str(name): entry for name, entry in content.items()}


def _variants(parameters: Any, where: str) -> list[dict[str, str]]:
    """Return the parameters of every variant: all combinations of a mapping, or a table's rows."""
    if parameters is None:
        return [{}]
    if isinstance(parameters, dict):
        choices = [_choices(value) for value in parameters.values()]
        return [dict(zip(parameters, row, strict=True)) for row in product(*choices)]
    if isinstance(parameters, list) and len(parameters) > 1:
        names, *rows = [_choices(row) for row in parameters]
        for row in rows:
            if len(row) != len(names):
                raise SpecError(
                    f"{where}: parameters: the row {row} has {len(row)} values for {len(names)} "
                    f"names, {', '.join(names)}. Write one for each."
                )
        return [dict(zip(names, row, strict=True)) for row in rows]
    raise SpecError(
        f"{where}: parameters is {parameters!r}. Write names with values, 'a: 1, 2', or a list of "
        "rows of which the first has the names."
    )


def _choices(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    return [part.strip() for part in str(value).split(",")]


def _metrics(data: Any, where: str) -> Iterable[Metric]:
    for name, settings in _mapping(data, f"{where}: data").items():
        here = f"{where}: data: {name}"
        settings = _mapping(settings, here)
        expression = settings.get("regexp")
        if not isinstance(expression, str):
            raise SpecError(f"{here}: there is no regexp. Write one with a group for the number.")
        try:
            pattern = re.compile(expression)
        except re.error as error:
            raise SpecError(f"{here}: {expression!r} is no regular expression: {error}.") from None
        if pattern.groups != 1:
            raise SpecError(
                f"{here}: {expression!r} has {pattern.groups} groups. Put the number, and nothing "
                "else, into ( )."
            )
        skip = settings.get("skip", 0)
        if not isinstance(skip, int) or skip < 0:
            raise SpecError(f"{here}: skip is {skip!r}. Write 0 or more.")
        yield Metric(name, pattern, skip, _reduction(settings, here))


def _derived(entries: Any, where: str) -> Iterable[Derived]:
    for name, settings in _mapping(entries, f"{where}: derived").items():
        here = f"{where}: derived: {name}"
        settings = _mapping(settings, here)
        if not isinstance(settings.get("expr"), str):
            raise SpecError(f"{here}: there is no expr. Write one, as '{{throughput}} / 2'.")
        yield Derived(name, settings["expr"], _reduction(settings, here))


def _reduction(settings: Mapping[str, Any], where: str) -> str:
    word = settings.get("reduction_type", "mean")
    if word not in REDUCTIONS:
        raise SpecError(f"{where}: reduction_type is {word!r}{_near(str(word), REDUCTIONS)}")
    return word


def _timeout(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise SpecError(f"{where}: timeout is {value!r}. Write a number of seconds.")
    return value


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError(f"{where}: {value!r} was found where names with values were expected.")
    return value


def _existing(file: Path, where: str) -> Path:
    if not file.is_file():
        raise SpecError(f"{where}: there is no file {file}.")
    return file.resolve()


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 2, 0.5)
    if near:
        return f". Did you mean {' or '.join(near)}?"
    return f". Choose from {', '.join(known)}." if known else "."
