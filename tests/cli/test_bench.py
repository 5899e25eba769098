"""Cases of Graphcore's benchmark runner, and our own; commands are real processes."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import convoy
import pytest
from convoy.bench import metrics
from convoy.cli.bench import main
from tests import parts

from examples_utils.__main__ import main as examples_utils

pytestmark = pytest.mark.integration

SCRIPT = """
import sys
rate = float(sys.argv[1])
for number in range(3):
    print(f"throughput: {rate + number} samples/sec")
"""
SPEC = """
passes:
  cmd: python3 script.py {rate}
  parameters: {rate: '10,20'}
  data:
    throughput: {regexp: 'throughput: *([0-9.]+)', skip: 1}
"""


@pytest.fixture(autouse=True)
def no_custom_metrics(monkeypatch):
    monkeypatch.setattr(metrics, "_custom", {})


@pytest.fixture
def place(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def run(place, spec, *flags, log="log"):
    (place / "benchmarks.yml").write_text(spec)
    arguments = ["--spec", str(place / "benchmarks.yml"), "--log-dir", str(place / log)]
    return main([*arguments, *map(str, flags)])


def results(place, log="log"):
    return json.loads((place / log / "benchmark_results.json").read_text())


def test_results_are_written_in_every_format(place, capsys):
    assert run(place, SPEC, "--additional-metrics", "--csv-metrics", "loss") == 0
    shown = capsys.readouterr().out
    assert "  | throughput: 12.0 samples/sec" in shown
    assert "PASSED passes::passes_rate_10\nPASSED passes::passes_rate_20" in shown
    assert "0 failed, 2 passed" in shown
    first, second = results(place)["passes"]
    assert first["results"] == {"throughput": {"mean": 11.5}}
    assert second["samples"] == {"throughput": [21, 22]}
    assert (first["params"], first["exitcode"], first["passed"]) == ({"rate": "10"}, 0, True)
    assert Path(first["log_paths"]["out"]).read_text().count("throughput") == 3
    assert first["versions"]["keras-convoy"] == convoy.__version__
    with (place / "log" / "benchmark_results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["throughput"] for row in rows] == ["11.5", "21.5"]
    assert {"latency", "total_compiling_time", "loss", "cmd", "git_commit_hash"} <= set(rows[0])
    suite = ElementTree.parse(place / "log" / "benchmark_results.xml").getroot()[0]
    assert suite.attrib["tests"] == "2"
    assert suite.attrib["failures"] == "0"
    log = place / "log"
    assert (log / "benchmark_results.png").stat().st_size > 1000
    assert (log / "output.log").read_text().count("samples/sec") == 6
    assert "Running passes::passes_rate_20" in (log / "console.log").read_text()
    assert json.loads((log / "passes_rate_10" / "variant_result.json").read_text())["passed"]


@pytest.mark.parametrize(
    ("own", "of_all", "seconds"),
    [(0.2, 0.3, 0.2), (0.2, 0.1, 0.1), (0.1, None, 0.1), (None, 0.1, 0.1)],
)
def test_the_smaller_time_limit_counts(place, own, of_all, seconds):
    spec = "slow: {cmd: sleep 100" + (f", timeout: {own}" if own else "") + "}\n"
    assert run(place, spec, *(["--timeout", of_all] if of_all else [])) == 1
    assert (place / "log" / "slow" / "stderr").read_text() == f"Timeout ({seconds})\n"


def test_after_a_failure_the_other_benchmarks_run(place, capsys):
    spec = (
        SPEC
        + """
no_figure: {cmd: python3 script.py 5, data: {latency: {regexp: 'latency ([0-9]+)'}}}
breaks: {cmd: python3 -c 'raise SystemExit("out of luck")'}
too_slow: {cmd: sleep 100, timeout: 0.2}
lost: {cmd: no-such-program}
unset: {cmd: ls $NOT_SET_ANYWHERE}
"""
    )
    assert run(place, spec) == 1
    shown = capsys.readouterr().out
    for line in (
        "FAILED no_figure::no_figure - latency: nothing in the output matches 'latency ([0-9]+)'",
        "FAILED breaks::breaks - exit status 1: out of luck",
        "FAILED too_slow::too_slow - Timeout (0.2)",
        "FAILED lost::lost - exit status 127: no-such-program: No such file or directory",
        "FAILED unset::unset - the command uses $NOT_SET_ANYWHERE, which is not set.",
        "5 failed, 2 passed",
    ):
        assert line in shown
    assert results(place)["no_figure"][0]["exitcode"] == 1
    tree = ElementTree.parse(place / "log" / "benchmark_results.xml").getroot()
    assert len(tree.findall(".//failure")) == 5
    assert "out of luck" in (place / "log" / "breaks" / "stderr").read_text()


def test_stop_on_error_stops_at_the_first_failure(place, capsys):
    spec = "first: {cmd: 'false'}\nsecond: {cmd: 'true'}\n"
    assert run(place, spec, "--stop-on-error") == 1
    assert "1 failed, 0 passed" in capsys.readouterr().out


def test_nothing_is_run_or_written_after_an_error_in_a_spec(place, capsys):
    spec = SPEC + "wrong: {}\n"
    assert run(place, spec, "--benchmark", "pases", "wrong", "passes") == 2
    error = capsys.readouterr().err
    assert "--benchmark pases is unknown. Did you mean passes?" in error
    assert "2 errors, nothing was run." in error
    assert not (place / "log").exists()


def test_a_run_is_compared_with_an_earlier_one(place, capsys):
    assert run(place, SPEC, log="old") == 0
    changed = SPEC.replace("{rate}\n", "{rate}0\n").replace("'10,20'", "'10,30'")
    capsys.readouterr()
    assert run(place, changed, "--compare", place / "old") == 0
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("passes_rate_10  thr")]
    assert line.split() == [
        *("passes_rate_10", "throughput", "11.5", "101.5"),
        *("+782.6%", "+741.7%", "to", "+827.3%"),
    ]
    assert "passes_rate_30: not compared, the earlier run has no figures of it" in shown
    assert "passes_rate_20: not in this run" in shown
    assert run(place, SPEC, "--compare", place / "old") == 0
    assert "within the spread" in capsys.readouterr().out
    assert run(place, SPEC, "--compare", place / "script.py") == 2
    assert "holds no results" in capsys.readouterr().err


def test_repeated_runs_take_turns_and_give_their_median(place):
    counting = "n = len(open('n', 'a+').write('x') * [0]) + open('n').read().count('x')\n"
    script = f"{counting}print('throughput:', n)"
    (place / "count.py").write_text(script)
    spec = "counts: {cmd: python3 count.py, data: {throughput: {regexp: ': (.*)'}}}\n"
    assert run(place, spec, "--repeat", 3) == 0
    (found,) = results(place)["counts"]
    low, middle, high = found["samples"]["throughput"]
    assert low < middle < high
    assert found["results"] == {"throughput": {"mean": middle}}
    assert (place / "log" / "counts" / "run_3" / "stdout").exists()


def test_a_file_registers_custom_metrics(place, capsys):
    (place / "mine.py").write_text(
        "from examples_utils.benchmarks.custom_metrics import register_custom_metric\n"
        "register_custom_metric('out', lambda out, err, status: len(out.splitlines()))\n"
        "register_custom_metric('err', lambda out, err, status: len(err.splitlines()))\n"
    )
    spec = "plain: {cmd: python3 script.py 1}\n"
    assert run(place, spec, "--custom-metrics-files", place / "mine.py") == 0
    assert "PASSED plain::plain" in capsys.readouterr().out
    found = results(place)["plain"][0]["results"]
    assert found == {"out": {"value": 3}, "err": {"value": 0}}
    (place / "idle.py").write_text("")
    assert run(place, spec, "--custom-metrics-files", place / "idle.py") == 2
    assert "it registers no metric" in capsys.readouterr().err


def test_compile_only_adds_the_flag_and_reads_no_metrics(place):
    script = "import sys; print(sys.argv)"
    (place / "script.py").write_text(script)
    assert run(place, SPEC, "--compile-only") == 0
    first = results(place)["passes"][0]
    assert first["results"] == {}
    assert "'--compile-only'" in Path(first["log_paths"]["out"]).read_text()


def test_logging_errors_only_shows_the_stderr_of_failures(place, capsys):
    spec = "breaks: {cmd: python3 -c 'print(1); raise SystemExit(\"out of luck\")'}\n"
    assert run(place, spec, "--logging", "ERROR") == 1
    shown = capsys.readouterr()
    assert "  | out of luck" in shown.out
    assert "  | 1" not in shown.out
    assert "[INFO]" not in shown.out


@parts.needs("ipykernel")
def test_a_notebook_runs_like_a_command(place):
    import nbformat

    for name, divisor in ("good", 1), ("bad", 0):
        code = ["rate = 2 * 21", "print('throughput:', rate)", f"1 / {divisor}"]
        notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, code)])
        nbformat.write(notebook, place / f"{name}.ipynb")
    before = (place / "good.ipynb").read_bytes()
    entry = (
        "{}:\n  notebook: {}.ipynb\n  data: {{throughput: {{regexp: 'throughput: ([0-9]+)'}}}}\n"
    )
    assert run(place, entry.format("good", "good") + entry.format("bad", "bad")) == 1
    good, bad = results(place)["good"][0], results(place)["bad"][0]
    assert (good["results"], good["passed"]) == ({"throughput": {"mean": 42}}, True)
    assert not bad["passed"]
    assert "ZeroDivisionError" in Path(bad["log_paths"]["err"]).read_text()
    assert (place / "good.ipynb").read_bytes() == before


def test_graphcores_command_runs_benchmarks(place):
    (place / "benchmarks.yml").write_text(SPEC)
    command = [sys.executable, "-m", "examples_utils", "benchmark", "--benchmark", "passes"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "PASSED passes::passes_rate_10" in done.stdout
    assert len(list(place.glob("log_*/benchmark_results.json"))) == 1


def test_other_commands_of_graphcores_tools_are_refused(capsys):
    assert examples_utils([]) == 1
    assert examples_utils(["paperspace"]) == 1
    assert "usage: python3 -m examples_utils benchmark" in capsys.readouterr().err
