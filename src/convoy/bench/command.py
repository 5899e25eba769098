"""Commands of benchmark variants: their words and their environment."""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from convoy.arguments import require_package
from convoy.bench.spec import Benchmark, SpecError, Variant

_BRACES = re.compile(r"(?<!\$)(?:\{\{|\}\}|\{(\w+)\})")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
FOLDER = "CONVOY_BENCH_FOLDER"
NOTEBOOK_SECONDS = 600
NOTEBOOK_PACKAGES = ("nbconvert", "ipykernel")


def make_command(
    benchmark: Benchmark,
    parameters: Variant,
    environment: Mapping[str, str],
    *,
    allow_wandb: bool = False,
    compile_only: bool = False,
) -> list[str]:
    """Return the words of a variant's command.

    Args:
        benchmark: the benchmark.
        parameters: parameters of the variant.
        environment: environment of the command, for `$VARIABLE`.
        allow_wandb: whether flags that begin with `--wandb` are kept.
        compile_only: whether to add `--compile-only` and drop flags that contact other machines.

    Raises:
        SpecError: if a parameter, a variable or a package is missing.
    """
    if benchmark.notebook is not None:
        return _notebook_command(benchmark.notebook, benchmark.timeout)
    text = fill(benchmark.cmd.replace("\\\n", " "), parameters)
    for name in _VARIABLE.findall(text):
        if name.strip("{}") not in environment:
            raise SpecError(
                f"the command uses ${name.strip('{}')}, which is not set. Set it, or add it to env."
            )
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"the command cannot be split into words: {error}. Correct cmd.") from None
    words = [_VARIABLE.sub(lambda found: environment[found[1].strip("{}")], w) for w in words]
    if not (allow_wandb or benchmark.allow_wandb) or compile_only:
        words = _without_flags(words, "--wandb")
    if compile_only:
        words = [*_without_flags(words, "--vipu"), "--compile-only"]
    if not words:
        raise SpecError("cmd has no words. Write a command.")
    return words


def fill(text: str, parameters: Mapping[str, object]) -> str:
    """Replace `{name}` by the parameter of that name; `{{` and `}}` stand for braces.

    Raises:
        SpecError: if there is no such parameter.
    """

    def replace(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return found[0][0]
        if name not in parameters:
            known = f"Use one of {', '.join(parameters)}." if parameters else "There are none."
            raise SpecError(f"{{{name}}} is not a parameter. {known}")
        return str(parameters[name])

    return _BRACES.sub(replace, text)


def make_environment(benchmark: Benchmark, folder: Path, *, profile: bool) -> dict[str, str]:
    """Return the environment variables of a command.

    Args:
        benchmark: the benchmark.
        folder: folder of the run, passed as `CONVOY_BENCH_FOLDER`.
        profile: whether the command writes reports of compilation and execution to `profile`
            in that folder.
    """
    values = os.environ | {FOLDER: str(folder)} | dict(benchmark.env)
    # `python3`, `convoy` and `poprun` are those of this environment, even if it is not activated.
    own = str(Path(sys.executable).parent)
    values["PATH"] = os.pathsep.join([own, values.get("PATH", os.defpath)])
    # Output is shown as soon as it is printed.
    values["PYTHONUNBUFFERED"] = "1"
    if profile:
        reports = {"autoReport.all": "true", "autoReport.directory": str(folder / "profile")}
        values["POPLAR_ENGINE_OPTIONS"] = json.dumps(reports)
    return values


def _notebook_command(notebook: Path, timeout: float | None) -> list[str]:
    try:
        for package in NOTEBOOK_PACKAGES:
            require_package(package, "a notebook")
    except ValueError as error:
        raise SpecError(str(error)) from None
    # With --stdout the notebook file itself is not overwritten.
    words = [sys.executable, "-m", "nbconvert", "--to", "markdown", "--execute", "--stdout"]
    limit = f"--ExecutePreprocessor.timeout={timeout or NOTEBOOK_SECONDS:g}"
    return [*words, limit, str(notebook)]


def _without_flags(words: list[str], prefix: str) -> list[str]:
    """Remove flags that begin with a prefix, and the value that follows each."""
    kept: list[str] = []
    takes_value = False
    for word in words:
        is_flag, is_value = word.startswith(prefix), takes_value and not word.startswith("-")
        takes_value = is_flag and "=" not in word
        if not is_flag and not is_value:
            kept.append(word)
    return kept
