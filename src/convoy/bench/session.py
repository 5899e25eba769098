"""A benchmark session: runs the variants of benchmarks one after the other."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from convoy.bench.command import make_command, make_environment
from convoy.bench.console import Console, Level
from convoy.bench.execution import TIMED_OUT, Execution, execute
from convoy.bench.metrics import Metrics, read_metrics
from convoy.bench.results import Result, join
from convoy.bench.spec import Benchmark, Seconds, SpecError, Variant, variant_name
from convoy.configuration import Configuration, Count, Option

# The number of lines of standard error that are shown for a failure.
ERROR_LINES = 100
_NOTHING_COPIED = "nothing is copied to other hosts"


@dataclass(frozen=True)
class SessionOptions(Configuration, all_flags=True):
    """Flags of `convoy bench`.

    benchmarks:
        spec: spec files (default: benchmarks.yml)
        benchmark: names of benchmarks, in the order to run (default: all)
        include_convergence: include names with _conv in them
        requirements_file: file of packages that pip installs first

    runs:
        repeat: number of runs of each variant, in turns (default: 1)
        timeout: upper limit for the time limits of all variants, in seconds
        stop_on_error: stop at the first failure
        compile_only: add --compile-only to commands, and read no metrics
        profile: make commands write reports of their programs
        allow_wandb: keep flags of commands that begin with --wandb

    results:
        log_dir: folder of the results (default: log_<time>)
        compare: folder or JSON file of an earlier run to compare with
        custom_metrics_files: Python files that register metrics
        csv_metrics: metrics with a column in the CSV file, in addition to the default ones
        additional_metrics: add duration, command, commit and more to the CSV file
        logging: lowest level that is shown (default: INFO)

    no effect:
        no_code_sync: accepted for compatibility
        remove_dirs_after: accepted for compatibility
        gc_monitor: accepted for compatibility
    """

    spec: tuple[Path, ...] = (Path("benchmarks.yml"),)
    benchmark: tuple[str, ...] = ()
    include_convergence: bool = False
    requirements_file: Path | None = None
    repeat: Count = 1
    timeout: Seconds | None = None
    stop_on_error: bool = False
    compile_only: bool = False
    profile: bool = False
    allow_wandb: bool = False
    log_dir: Annotated[Path | None, Option(aliases=("logdir",))] = None
    compare: Path | None = None
    custom_metrics_files: tuple[Path, ...] = ()
    csv_metrics: tuple[str, ...] = ()
    additional_metrics: bool = False
    logging: Level = "INFO"
    no_code_sync: Annotated[bool, Option(no_effect=_NOTHING_COPIED)] = False
    remove_dirs_after: Annotated[bool, Option(no_effect=_NOTHING_COPIED)] = False
    gc_monitor: Annotated[bool, Option(no_effect="there is no IPU to monitor")] = False


class Session:
    """Runs benchmarks one after the other.

    Args:
        options: flags of the command line.
        console: destination of messages and output.
        folder: folder of the results.

    Attributes:
        interrupted: whether Ctrl-C ended the session.
    """

    def __init__(self, options: SessionOptions, console: Console, folder: Path) -> None:
        self.options = options
        self.console = console
        self.folder = folder.resolve()
        self.interrupted = False
        self._installed: set[Path] = set()

    def run(self, benchmarks: Sequence[Benchmark]) -> list[Result]:
        """Run all variants and return a result for each that was run.

        Repeated runs take turns, so that a drift of the machine affects all variants alike.
        """
        runs: dict[str, list[Result]] = {}
        try:
            for turn in range(1, self.options.repeat + 1):
                for benchmark in benchmarks:
                    for parameters in benchmark.parameters:
                        result = self._run_variant(benchmark, parameters, turn)
                        runs.setdefault(result.variant_name, []).append(result)
                        if not result.passed and self.options.stop_on_error:
                            self.console.error("Stopped at the first failure (--stop-on-error).")
                            return [join(own) for own in runs.values()]
        except KeyboardInterrupt:
            self.interrupted = True
            self.console.error("Interrupted; the results contain the variants that had finished.")
        return [join(own) for own in runs.values()]

    def _run_variant(self, benchmark: Benchmark, parameters: Variant, turn: int) -> Result:
        variant = variant_name(benchmark.name, parameters)
        folder = self.folder / re.sub(r"[^\w.,=+-]", "_", variant)
        if turn > 1:
            folder = folder / f"run_{turn}"
        count = f" ({turn} of {self.options.repeat})" if self.options.repeat > 1 else ""
        self.console.info(f"Running {benchmark.name}::{variant}{count}")
        command: list[str] = []
        metrics = Metrics()
        try:
            environment = make_environment(benchmark, folder, profile=self.options.profile)
            command = make_command(
                benchmark,
                parameters,
                environment,
                allow_wandb=self.options.allow_wandb,
                compile_only=self.options.compile_only,
            )
            self.console.info(f"  {shlex.join(command)}")
            self._install_requirements(benchmark, environment)
            limits = (self.options.timeout, benchmark.timeout)
            execution = execute(
                command,
                folder,
                folder=benchmark.location,
                environment=environment,
                timeout=min((limit for limit in limits if limit is not None), default=None),
                show=self.console.output,
            )
            if not self.options.compile_only:
                metrics = read_metrics(benchmark, parameters, command, execution)
            reason = _failure_reason(execution, metrics)
        except SpecError as error:
            execution, reason = Execution(1, "", "", datetime.now(UTC), 0.0), str(error)
        result = Result(
            benchmark_path=str(benchmark.spec.resolve()),
            benchmark_name=benchmark.name,
            variant_name=variant,
            params=parameters,
            env=benchmark.env,
            command=shlex.join(command),
            results=metrics.values,
            samples=metrics.samples,
            reason=reason,
            passed=not reason,
            exitcode=execution.exit_status or bool(reason),
            start_time=execution.start.isoformat(),
            end_time=(execution.start + timedelta(seconds=execution.seconds)).isoformat(),
            test_duration=execution.seconds,
            log_paths={"out": str(folder / "stdout"), "err": str(folder / "stderr")},
        )
        self._log_result(result, execution)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "variant_result.json").write_text(json.dumps(asdict(result), indent=2) + "\n")
        return result

    def _log_result(self, result: Result, execution: Execution) -> None:
        for metric, value in result.values.items():
            self.console.info(f"  {metric} = {value:.6g}")
        if result.passed:
            self.console.info(f"  passed in {result.test_duration:.1f} s")
            return
        self.console.error(f"{result.variant_name}: {result.reason}")
        if not self.console.shows_output:
            for line in execution.stderr.splitlines()[-ERROR_LINES:]:
                self.console.plain(f"  | {line}")

    def _install_requirements(self, benchmark: Benchmark, environment: Mapping[str, str]) -> None:
        for file in (self.options.requirements_file, benchmark.requirements_file):
            if file is None or file in self._installed:
                continue
            self.console.info(f"  installing the packages of {file}")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--requirement", str(file)]
            execution = execute(
                pip,
                self.folder / "requirements",
                folder=Path.cwd(),
                environment=environment,
                timeout=None,
                show=self.console.output,
            )
            if execution.exit_status:
                raise SpecError(f"pip could not install the packages of {file}. See its output.")
            self._installed.add(file)


def _failure_reason(execution: Execution, metrics: Metrics) -> str:
    """Return the cause of a failure in one line; empty if there was none."""
    last = [line for line in execution.stderr.splitlines() if line.strip()][-1:]
    if execution.exit_status == TIMED_OUT and last:
        return last[0]
    if execution.exit_status:
        return ": ".join([f"exit status {execution.exit_status}", *last])
    return "; ".join(metrics.missing)
