"""`convoy bench`: runs the benchmarks of a spec."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from convoy.bench import custom
from convoy.bench.chart import draw_chart
from convoy.bench.compare import compare, describe, read_earlier
from convoy.bench.console import LEVELS, SEPARATOR, Console
from convoy.bench.execute import TIMED_OUT, Execution, execute
from convoy.bench.invocation import Changes, environment_of, words_of
from convoy.bench.metrics import Figures, read_figures
from convoy.bench.results import NAME, Outcome, join, write_results
from convoy.bench.spec import Benchmark, SpecError, read_benchmarks, variant_name
from convoy_command.parser import INTERRUPTED, Parser

SPEC = Path("benchmarks.yml")
LINES_OF_AN_ERROR = 100
NO_EFFECT = {
    "no-code-sync": "nothing is copied to other hosts",
    "remove-dirs-after": "nothing is copied to other hosts",
    "gc-monitor": "there is no IPU to watch",
}


def make_parser(program: str = "convoy bench") -> Parser:
    parser = Parser(prog=program, description="Run the benchmarks of a spec.", allow_abbrev=False)
    add = parser.add_argument
    add("--spec", type=Path, nargs="+", default=[SPEC], help=f"spec files (default: {SPEC})")
    add("--benchmark", nargs="+", default=[], metavar="NAME", help="which, in this order")
    add("--compare", type=Path, metavar="OLD", help="folder or JSON of an earlier run")
    add("--repeat", type=int, default=1, metavar="N", help="run every variant N times, in turns")
    add("--timeout", type=float, help="seconds for a variant; a spec's own counts if it is smaller")
    add("--log-dir", "--logdir", type=Path, help="where results go (default: log_<time>)")
    add("--stop-on-error", action="store_true", help="stop at the first failure")
    add("--include-convergence", action="store_true", help="run names with _conv in them, too")
    add("--compile-only", action="store_true", help="add --compile-only; no figures are read")
    add("--profile", action="store_true", help="have commands write reports of their programs")
    add("--custom-metrics-files", type=Path, nargs="+", default=[], help="Python files")
    add("--csv-metrics", nargs="+", default=[], metavar="METRIC", help="more columns of the CSV")
    add("--additional-metrics", action="store_true", help="duration, command, commit ... there")
    add("--allow-wandb", action="store_true", help="keep the commands' --wandb flags")
    add("--requirements-file", type=Path, help="pip installs it first")
    add("--logging", choices=LEVELS, default="INFO", help="what is shown (default: INFO)")
    for name, reason in NO_EFFECT.items():
        add(f"--{name}", action="store_true", help=f"accepted, without effect here: {reason}")
    return parser


def main(words: Sequence[str], program: str = "convoy bench") -> int:
    """Run the benchmarks of a spec.

    Returns:
        0 if all passed, 1 if one failed, 2 if nothing was run, 130 if it was interrupted.
    """
    options = make_parser(program).parse_args(words)
    try:
        if options.repeat < 1:
            raise SpecError(f"--repeat {options.repeat}: pass 1 or more.")
        if options.timeout is not None and options.timeout <= 0:
            raise SpecError(f"--timeout {options.timeout:g}: pass a number of seconds.")
        benchmarks = read_benchmarks(
            options.spec, options.benchmark, include_convergence=options.include_convergence
        )
        earlier = read_earlier(options.compare) if options.compare else {}
        for file in options.custom_metrics_files:
            custom.load(file)
    except SpecError as error:
        problems = str(error).splitlines()
        for problem in problems:
            print(f"{program}: error: {problem}", file=sys.stderr)
        if len(problems) > 1:
            print(f"{program}: {len(problems)} errors, nothing was run.", file=sys.stderr)
        return 2
    folder = options.log_dir or Path(time.strftime("log_%Y-%m-%d-%H-%M-%S"))
    folder.mkdir(parents=True, exist_ok=True)
    with Console(folder, options.logging) as console:
        for name, reason in NO_EFFECT.items():
            if getattr(options, name.replace("-", "_")):
                console.info(f"--{name} is without effect here: {reason}.")
        session = Session(options, console, folder)
        outcomes, interrupted = session.run(benchmarks)
        write_results(
            outcomes, folder, more_columns=options.csv_metrics, details=options.additional_metrics
        )
        picture = draw_chart(outcomes, earlier, folder)
        if options.compare:
            console.plain(f"{SEPARATOR} beside {options.compare} {SEPARATOR}")
            console.plain("\n".join(describe(compare(outcomes, earlier), outcomes, earlier)))
        for line in summary(outcomes):
            console.plain(line)
        console.info(f"Results: {picture or folder / f'{NAME}.json'} and more beside it")
    if interrupted:
        return INTERRUPTED
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what passed and what failed, a line each, and how many."""
    lines = [f"{SEPARATOR} short test summary info {SEPARATOR}"]
    for outcome in outcomes:
        name = f"{outcome.benchmark}::{outcome.variant}"
        lines.append(f"PASSED {name}" if outcome.passed else f"FAILED {name} - {outcome.reason}")
    failed = sum(not outcome.passed for outcome in outcomes)
    lines.append(f"{SEPARATOR} {failed} failed, {len(outcomes) - failed} passed {SEPARATOR}")
    return lines


class Session:
    """Runs benchmarks one after the other.

    Args:
        options: of the command line.
        console: what is said goes there.
        folder: of the run.
    """

    def __init__(self, options: argparse.Namespace, console: Console, folder: Path) -> None:
        self.options = options
        self.console = console
        self.folder = folder.resolve()
        self._installed: set[Path] = set()

    def run(self, benchmarks: Sequence[Benchmark]) -> tuple[list[Outcome], bool]:
        """Return an outcome for each variant that was run, and whether it was interrupted.

        Rounds of repeated runs take turns, so that a machine that drifts hits all variants alike.
        """
        runs: dict[str, list[Outcome]] = {}
        interrupted = False
        try:
            for number in range(1, self.options.repeat + 1):
                for benchmark in benchmarks:
                    for parameters in benchmark.variants:
                        outcome = self._variant(benchmark, parameters, number)
                        runs.setdefault(outcome.variant, []).append(outcome)
                        if not outcome.passed and self.options.stop_on_error:
                            self.console.error("Stopped at the first failure (--stop-on-error).")
                            return [join(own) for own in runs.values()], False
        except KeyboardInterrupt:
            interrupted = True
            self.console.error("Interrupted; what had finished is in the results.")
        return [join(own) for own in runs.values()], interrupted

    def _variant(self, benchmark: Benchmark, parameters: Mapping[str, str], number: int) -> Outcome:
        variant = variant_name(benchmark.name, parameters)
        folder = self.folder / re.sub(r"[^\w.,=+-]", "_", variant)
        if number > 1:
            folder = folder / f"run_{number}"
        turn = f" ({number} of {self.options.repeat})" if self.options.repeat > 1 else ""
        self.console.info(f"Running {benchmark.name}::{variant}{turn}")
        environment = environment_of(benchmark, folder, profile=self.options.profile)
        changes = Changes(self.options.allow_wandb, self.options.compile_only)
        words: list[str] = []
        figures = Figures()
        try:
            words = words_of(benchmark, parameters, environment, changes)
            self.console.info(f"  {shlex.join(words)}")
            self._install(benchmark, environment)
            limits = [s for s in (self.options.timeout, benchmark.timeout) if s is not None]
            done = execute(
                words,
                folder,
                location=benchmark.location,
                environment=environment,
                timeout=min(limits, default=None),
                show=self.console.output,
            )
            if not self.options.compile_only:
                figures = read_figures(benchmark, parameters, words, done.output, done.exit_status)
            reason = _reason(done, figures)
        except SpecError as error:
            done, reason = Execution(1, ("", ""), time.time(), 0.0), str(error)
        outcome = Outcome(
            benchmark.name,
            variant,
            benchmark.file.resolve(),
            dict(parameters),
            dict(benchmark.environment),
            shlex.join(words),
            figures.values,
            figures.samples,
            done.exit_status or bool(reason),
            reason,
            done.start,
            done.seconds,
            (folder / "stdout", folder / "stderr"),
        )
        self._tell(outcome, done)
        folder.mkdir(parents=True, exist_ok=True)
        result = json.dumps(outcome.as_dict(), indent=2)
        (folder / "variant_result.json").write_text(result + "\n")
        return outcome

    def _tell(self, outcome: Outcome, done: Execution) -> None:
        for metric in outcome.values:
            value = outcome.value(metric)
            if value is not None:
                self.console.info(f"  {metric} = {value:.6g}")
        if outcome.passed:
            self.console.info(f"  passed in {outcome.seconds:.1f} s")
            return
        self.console.error(f"{outcome.variant}: {outcome.reason}")
        if not self.console.shows_output:
            for line in done.output[1].splitlines()[-LINES_OF_AN_ERROR:]:
                self.console.plain(f"  | {line}")

    def _install(self, benchmark: Benchmark, environment: Mapping[str, str]) -> None:
        for file in (self.options.requirements_file, benchmark.requirements):
            if file is None or file in self._installed:
                continue
            self.console.info(f"  installing what {file} lists")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--requirement", str(file)]
            done = execute(
                pip,
                self.folder / "requirements",
                location=Path.cwd(),
                environment=environment,
                timeout=None,
                show=self.console.output,
            )
            if done.exit_status:
                raise SpecError(f"pip could not install what {file} lists.")
            self._installed.add(file)


def _reason(done: Execution, figures: Figures) -> str:
    """Return why a run failed, in one line; nothing if it did not."""
    if done.exit_status == TIMED_OUT and (lines := done.output[1].splitlines()):
        return lines[-1]
    if done.exit_status:
        said = [line for line in done.output[1].splitlines() if line.strip()][-1:]
        return ": ".join([f"exit status {done.exit_status}", *said])
    return "; ".join(figures.missing)
