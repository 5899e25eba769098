"""Command line of `convoy bench`: runs the benchmarks of a spec."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from convoy.bench.comparison import comparison_table, draw_chart, measurements, read_earlier
from convoy.bench.console import Console
from convoy.bench.metrics import load_custom_metrics
from convoy.bench.results import NAME, Result, write_results
from convoy.bench.session import Session, SessionOptions
from convoy.bench.spec import read_benchmarks
from convoy.configuration import ConfigurationError, add_flags, flag_name, options, read
from convoy_command.parser import INTERRUPTED, Parser, failed

SEPARATOR = "=" * 20


def make_parser(program: str = "convoy bench") -> Parser:
    parser = Parser(prog=program, description="Run the benchmarks of a spec.")
    add_flags(parser, SessionOptions)
    return parser


def main(words: Sequence[str], program: str = "convoy bench") -> int:
    """Run the benchmarks of a spec.

    Returns:
        0 if all passed, 1 if one failed, 2 if nothing was run, 130 if it was interrupted.
    """
    flags = vars(make_parser(program).parse_args(words))
    try:
        settings = read(SessionOptions, flags, flags=True)
        benchmarks = read_benchmarks(
            settings.spec, settings.benchmark, include_convergence=settings.include_convergence
        )
        before = read_earlier(settings.compare) if settings.compare else {}
        for file in settings.custom_metrics_files:
            load_custom_metrics(file)
    except ConfigurationError as error:
        problems = str(error).splitlines()
        for problem in problems:
            failed(program, problem)
        if len(problems) > 1:
            print(f"{program}: {len(problems)} errors, nothing was run.", file=sys.stderr)
        return 2
    folder = settings.log_dir or Path(time.strftime("log_%Y-%m-%d-%H-%M-%S"))
    folder.mkdir(parents=True, exist_ok=True)
    with Console(folder, settings.logging) as console:
        for name, option in options(SessionOptions).items():
            if option.no_effect and getattr(settings, name):
                console.info(f"{flag_name(name)} has no effect here: {option.no_effect}.")
        session = Session(settings, console, folder)
        results = session.run(benchmarks)
        write_results(
            results,
            folder,
            more_columns=settings.csv_metrics,
            details=settings.additional_metrics,
        )
        now = measurements(results)
        chart = draw_chart(now, before, folder)
        if settings.compare:
            console.plain(f"{SEPARATOR} compared with {settings.compare} {SEPARATOR}")
            console.plain("\n".join(comparison_table(now, before)))
        console.plain("\n".join(_summary(results)))
        console.info(f"Results: {chart or folder / f'{NAME}.json'} and the other files there")
    if session.interrupted:
        return INTERRUPTED
    return 0 if all(result.passed for result in results) else 1


def _summary(results: Sequence[Result]) -> list[str]:
    lines = [f"{SEPARATOR} short test summary info {SEPARATOR}"]
    for result in results:
        name = f"{result.benchmark_name}::{result.variant_name}"
        lines.append(f"PASSED {name}" if result.passed else f"FAILED {name} - {result.reason}")
    failures = sum(not result.passed for result in results)
    lines.append(f"{SEPARATOR} {failures} failed, {len(results) - failures} passed {SEPARATOR}")
    return lines
