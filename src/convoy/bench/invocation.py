"""From a benchmark and its parameters to the words of a command."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from convoy.bench.spec import Benchmark, SpecError

_BRACES = re.compile(r"(?<!\$)(?:\{\{|\}\}|\{(\w+)\})")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
FOLDER = "CONVOY_BENCH_FOLDER"
NOTEBOOK_SECONDS = 600
NOTEBOOK_PACKAGES = ("nbconvert", "ipykernel")


@dataclass(frozen=True)
class Changes:
    """What is changed in every command.

    Attributes:
        allow_wandb: keep flags that begin with `--wandb`.
        compile_only: add `--compile-only`, and leave out what waits for other machines.
    """

    allow_wandb: bool = False
    compile_only: bool = False


def words_of(
    benchmark: Benchmark, parameters: Mapping[str, str], environment: Mapping[str, str], to: Changes
) -> list[str]:
    """Return the words of a variant's command.

    Args:
        benchmark: what to run.
        parameters: of the variant.
        environment: in which it will run; `$VARIABLE` is taken from it.
        to: what is changed in every command.

    Raises:
        SpecError: if the command asks for what is not there.
    """
    if benchmark.notebook is not None:
        return _notebook(benchmark)
    text = fill(benchmark.command.replace("\\\n", " "), parameters)
    unset = [name for name in _variables(text) if name not in environment]
    if unset:
        raise SpecError(f"the command reads ${unset[0]}, which is not set. Set it, or add an env.")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"the command cannot be divided into words: {error}.") from None
    words = [_VARIABLE.sub(lambda found: environment[found[1].strip("{}")], w) for w in words]
    if not (to.allow_wandb or benchmark.allow_wandb) or to.compile_only:
        words = _without(words, "--wandb")
    if to.compile_only:
        words = [*_without(words, "--vipu"), "--compile-only"]
    if not words:
        raise SpecError("the command is empty.")
    return words


def fill(text: str, parameters: Mapping[str, object]) -> str:
    """Put values in the place of `{name}`; `{{` and `}}` are braces.

    Raises:
        SpecError: if there is no such name.
    """

    def replace(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return found[0][0]
        if name not in parameters:
            known = f"There are {', '.join(parameters)}." if parameters else "There are none."
            raise SpecError(f"{{{name}}} is not a parameter. {known}")
        return str(parameters[name])

    return _BRACES.sub(replace, text)


def environment_of(benchmark: Benchmark, folder: Path, *, profile: bool) -> dict[str, str]:
    """Return the variables that a command sees.

    Args:
        benchmark: what is run.
        folder: of this run of it; in the variable `CONVOY_BENCH_FOLDER`.
        profile: whether it shall write reports of compilation and execution, to `profile` there.
    """
    values = os.environ | {FOLDER: str(folder)} | dict(benchmark.environment)
    # So that `python3`, `convoy` and `poprun` are those of this environment, activated or not.
    here = str(Path(sys.executable).parent)
    values["PATH"] = os.pathsep.join([here, values.get("PATH", os.defpath)])
    # What is printed is to be seen when it is.
    values["PYTHONUNBUFFERED"] = "1"
    if profile:
        reports = {"autoReport.all": "true", "autoReport.directory": str(folder / "profile")}
        values["POPLAR_ENGINE_OPTIONS"] = json.dumps(reports)
    return values


def _notebook(benchmark: Benchmark) -> list[str]:
    missing = [name for name in NOTEBOOK_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SpecError(
            f"a notebook needs the package {missing[0]}. Install it with: pip install "
            f"{' '.join(NOTEBOOK_PACKAGES)}"
        )
    # Without --output it would be written over; what it prints is in the result.
    words = [sys.executable, "-m", "nbconvert", "--to", "markdown", "--execute", "--stdout"]
    limit = benchmark.timeout or NOTEBOOK_SECONDS
    return [*words, f"--ExecutePreprocessor.timeout={limit:g}", str(benchmark.notebook)]


def _variables(text: str) -> list[str]:
    return [name.strip("{}") for name in _VARIABLE.findall(text)]


def _without(words: list[str], prefix: str) -> list[str]:
    """Leave out flags that begin with a prefix, and the value that follows one."""
    kept: list[str] = []
    after_flag = False
    for word in words:
        if word.startswith(prefix):
            after_flag = "=" not in word
        elif after_flag and not word.startswith("-"):
            after_flag = False
        else:
            after_flag = False
            kept.append(word)
    return kept
