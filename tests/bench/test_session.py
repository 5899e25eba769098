"""Runs of benchmarks: turns, failures, time limits and what is written about each variant."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from convoy.bench.console import Console
from convoy.bench.session import Session, SessionOptions
from convoy.bench.spec import Benchmark, Metric
from convoy.configuration import read


def command(program):
    return shlex.join([sys.executable, "-c", program])


@pytest.fixture
def run(tmp_path):
    """Run benchmarks with some options; returns their results."""

    def run(*benchmarks, **options):
        with Console(tmp_path, "CRITICAL") as console:
            session = Session(SessionOptions(**options), console, tmp_path)
            return session.run(benchmarks)

    return run


def benchmark(name, program, **settings):
    return Benchmark(name=name, spec=Path("spec.yml"), cmd=command(program), **settings)


def metric(pattern):
    return read(Metric, {"regexp": pattern})


def test_variants_take_turns_and_the_median_is_kept(run, tmp_path):
    count = "p = open('count', 'a'); p.write('{size}'); p.flush()"
    text = "print('speed:', len(open('count').read()))"
    both = benchmark(
        "turns",
        f"{count}; {text}",
        parameters=({"size": "1"}, {"size": "2"}),
        data={"speed": metric(r"speed: (\d+)")},
        location=tmp_path,
    )
    first, second = run(both, repeat=3)
    assert (tmp_path / "count").read_text() == "121212"
    assert (first.samples["speed"], first.value("speed")) == ([1, 3, 5], 3)
    assert (second.samples["speed"], second.value("speed")) == ([2, 4, 6], 4)
    assert first.passed
    assert len(list(tmp_path.glob("*/variant_result.json"))) == 2
    assert len(list(tmp_path.glob("*/run_3/variant_result.json"))) == 2


def test_a_failure_has_its_reason_and_the_others_run(run):
    bad = benchmark("bad", "import sys; sys.exit('no data')")
    unknown = Benchmark(name="unknown", spec=Path("spec.yml"), cmd="run {size}")
    good = benchmark("good", "print(1)")
    failed, refused, passed = run(bad, unknown, good)
    assert (failed.passed, failed.exitcode, failed.reason) == (False, 1, "exit status 1: no data")
    assert refused.reason.startswith("{size} is not a parameter.")
    assert passed.passed
    assert [result.benchmark_name for result in run(bad, good, stop_on_error=True)] == ["bad"]


def test_the_shorter_time_limit_counts(run):
    slow = benchmark("slow", "import time; time.sleep(60)", timeout=50)
    (result,) = run(slow, timeout=0.2)
    assert not result.passed
    assert result.reason == "Timeout (0.2)"


def test_a_metric_that_is_missing_fails_unless_commands_are_only_compiled(run):
    silent = benchmark("silent", "pass", data={"speed": metric(r"speed: (\d+)")})
    (result,) = run(silent)
    assert result.reason.startswith("speed: nothing in the output matches")
    (compiled,) = run(silent, compile_only=True)
    assert (compiled.passed, compiled.results) == (True, {})
    assert compiled.command.endswith("--compile-only")


def test_the_result_of_a_variant_is_a_file(run, tmp_path):
    run(benchmark("one", "print('x')"))
    (path,) = tmp_path.glob("*/variant_result.json")
    written = json.loads(path.read_text())
    assert (written["benchmark_name"], written["passed"], written["exitcode"]) == ("one", True, 0)
