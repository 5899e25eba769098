"""The parts of the benchmark against peers that can be tested without running it."""

import dataclasses
import json
import math
from typing import ClassVar

import keras
import pytest
from benchmarks.peers import chart, environments, keras_models, protocol, report, run
from benchmarks.peers import turns as turn_taking
from benchmarks.peers.peers import (
    BFLOAT16,
    CORES,
    FLOAT16,
    FLOAT32,
    HEADLINE,
    LIMIT,
    PEERS,
    STOCK,
    Contender,
)
from benchmarks.peers.suites import PEERS_SUITE
from benchmarks.peers.workloads import WORKLOADS


def turns(*milliseconds, steps=10, others=0.0, cpu_factor=2.0, first_round=0):
    return [
        {
            "round": number,
            "steps": steps,
            "seconds": steps * value / 1e3,
            "cpu_seconds": cpu_factor * steps * value / 1e3,
            "others": others,
        }
        for number, value in enumerate(milliseconds, first_round)
    ]


def make_result(rows, name="resnet50", **changes):
    return {
        "date": "2026-01-31",
        "commit": "abc1234",
        "machine": {"CPU": "a CPU", "cores": "2"},
        "settings": {"rounds": 3, "seconds_per_turn": 3.0, "precisions": [FLOAT32, BFLOAT16]},
        "peers": {HEADLINE: {"versions": {"keras": "3.15"}, "note": "oneDNN"}},
        "dropped": [],
        "workloads": {name: {FLOAT32: rows}},
        "starts": {},
        "profiles": {},
    } | changes


class FakeRunner:
    def __init__(self):
        self.steps = []

    def prepare(self, workload, precision):
        return protocol.Ready(workload.parameters, {"numpy": "2.0"}, f"fine in {precision}")

    def run(self, steps):
        if steps > 100:
            raise MemoryError("too much\nand more")
        self.steps.append(steps)


class TestProtocol:
    def test_prepare_is_answered_with_what_the_runner_tells(self):
        answer = protocol.reply(FakeRunner(), "prepare mnist bfloat16\n")

        expected = protocol.Ready(34_826, {"numpy": "2.0"}, "fine in bfloat16")
        assert protocol.parse_ready(answer) == expected

    def test_run_is_answered_with_seconds(self):
        runner = FakeRunner()

        assert protocol.parse_seconds(protocol.reply(runner, "run 20\n")) >= 0
        assert runner.steps == [20]

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ("run 1000", "MemoryError: too much"),
            ("prepare nothing float32", "KeyError: 'nothing'"),
            ("dance", "'dance' is not a request of the protocol"),
        ],
    )
    def test_a_failure_is_one_line_and_becomes_an_error(self, line, why):
        answer = protocol.reply(FakeRunner(), line)

        assert "\n" not in answer
        with pytest.raises(protocol.RunnerError, match=why):
            protocol.parse_seconds(answer)

    def test_another_network_is_refused(self):
        with pytest.raises(ValueError, match="this network has 35"):
            protocol.check_parameters(WORKLOADS["mnist"], 35)


class TestWorkloads:
    # Those of `keras.applications` take seconds to build, even without values for their weights;
    # their runners check them.
    @pytest.mark.parametrize("name", ["toy", "mnist", "resnet8", "resnet20-wide", "cosmoflow"])
    def test_the_keras_network_has_the_parameters_that_every_peer_is_checked_for(self, name):
        work = WORKLOADS[name]

        with keras.StatelessScope(initialize_variables=False):
            model = getattr(keras_models, work.network)()

        assert sum(math.prod(weight.shape) for weight in model.trainable_weights) == work.parameters
        assert model.input_shape == (None, *work.input_shape)
        assert model.output_shape == (None, work.outputs)

    def test_data_is_an_epoch_and_always_the_same(self):
        work = dataclasses.replace(WORKLOADS["mnist"], steps=2)

        x, y = work.data()

        assert x.shape == (128, 28, 28, 1)
        assert x.dtype == "float32"
        assert (y == work.data()[1]).all()

    @pytest.mark.parametrize(
        ("seconds", "step_seconds", "steps"),
        [(3, 1.0, 4), (3, 10.0, 2), (3, 0.5, 6), (3, 0.1, 32)],
    )
    def test_a_turn_is_whole_loops_and_whole_epochs(self, seconds, step_seconds, steps):
        work = WORKLOADS["resnet50"]
        assert (work.loop_steps, work.steps) == (2, 8)

        assert work.whole_steps(seconds, step_seconds) == steps

    def test_an_epoch_is_whole_loops(self):
        assert all(work.steps % work.loop_steps == 0 for work in WORKLOADS.values())


class TestPeers:
    def test_every_environment_is_described(self):
        known = {environments.OURS, *environments.requirements()}

        assert {peer.environment for peer in PEERS.values()} == known

    def test_the_peers_run_the_versions_of_keras_and_jax_that_we_run(self):
        wanted = environments.requirements()

        assert all("==" in wanted["keras-jax"][index] for index in (0, 1))
        assert wanted["keras-jax"][1] in wanted["tensorflow"]
        assert wanted["keras-jax"][1] in wanted["torch"]

    def test_an_environment_is_built_once_for_the_same_requirements(self, tmp_path, monkeypatch):
        monkeypatch.setattr(environments, "FOLDER", tmp_path)
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / environments.STAMP).write_text("torch==2.13.0\nonnx\n")

        assert environments.is_built("torch", ["torch==2.13.0", "onnx"])
        assert not environments.is_built("torch", ["torch==2.14.0", "onnx"])
        assert not environments.is_built("tensorflow", ["tensorflow-cpu"])

    @pytest.mark.parametrize("kind", ["training", "inference"])
    @pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16, FLOAT16])
    def test_convoy_takes_part_in_everything(self, kind, precision):
        found = PEERS_SUITE.contenders(kind, peers=["torch"], precisions=[precision])

        expected = {HEADLINE} if precision == FLOAT16 else {HEADLINE, "torch"}
        assert {one.peer.name for one in found} == expected

    def test_precisions_that_are_interleaved_are_those_that_a_peer_has(self):
        found = {
            one.key for one in PEERS_SUITE.contenders("inference", precisions=[FLOAT32, BFLOAT16])
        }

        both = {(p, name) for p in (FLOAT32, BFLOAT16) for name in ("torch", "openvino")}
        assert both <= found
        assert (FLOAT32, "onnxruntime") in found
        assert (BFLOAT16, "onnxruntime") not in found
        assert not any(name == STOCK for _, name in found)


class TestRatios:
    def test_a_ratio_is_taken_within_each_round(self):
        # The machine was half as fast in the last round, for both.
        ratio = report.speedup(turns(10, 10, 20), turns(20, 22, 42))

        assert ratio == report.Spread(pytest.approx(2.1), pytest.approx(2.0), pytest.approx(2.2))

    def test_steps_need_not_be_as_many(self):
        ratio = report.speedup(turns(10, steps=4), turns(30, steps=2))

        assert ratio.middle == pytest.approx(3)

    def test_rounds_in_which_only_one_took_part_do_not_count(self):
        ours, theirs = turns(10, 20, 30), turns(60, 90, first_round=1)

        assert report.speedup(ours, theirs) == report.Spread(3, 3, 3)

    def test_cpu_time_has_a_ratio_of_its_own(self):
        ratio = report.speedup(turns(10, cpu_factor=1.0), turns(20, cpu_factor=2.0), "cpu_seconds")

        assert ratio.middle == pytest.approx(4)

    def test_the_best_peer_is_neither_ours_nor_the_limit(self):
        rows = {
            HEADLINE: turns(10),
            CORES: turns(5),
            LIMIT: turns(4),
            "torch": turns(12),
            STOCK: turns(40),
        }

        assert report.best_peer(rows) == "torch"
        assert report.best_peer({HEADLINE: turns(10)}) is None

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0.654, "0.65"), (6.54, "6.54"), (65.4, "65.4"), (654.3, "654"), (6543.2, "6,543")],
    )
    def test_figures_have_the_digits_that_count(self, value, text):
        assert report.figure(value) == text


class TestPage:
    def test_a_row_that_leads_says_by_how_much(self):
        rows = {HEADLINE: turns(100), "torch": turns(130), STOCK: turns(300), LIMIT: turns(80)}

        assert report.verdicts("resnet50", {FLOAT32: rows}) == [
            "1.30 times the best peer, PyTorch",
            "3.00 times Keras on JAX",
            "80% of the convolution limit",
        ]

    def test_a_row_that_falls_short_says_by_how_much(self):
        rows = {HEADLINE: turns(100), "torch": turns(90), STOCK: turns(200), LIMIT: turns(60)}

        assert report.verdicts("resnet50", {FLOAT32: rows}) == [
            "0.90 times the best peer, PyTorch (**short** of 1.0 by 10%)",
            "2.00 times Keras on JAX (**short** of 2.5 by 20%)",
            "60% of the convolution limit (**short** of 75% by 15%)",
        ]

    def test_it_holds_images_ratios_times_versions_and_the_machine(self):
        rows = {HEADLINE: turns(100, 100, 110), "torch": turns(130, 140, 143)}

        page = report.page(make_result(rows))

        assert "| ResNet-50 at 224, batch 8 | 80.0 | 1.30 [1.30 to 1.40] |" in page
        assert "| ResNet-50 at 224, batch 8 | 100 [100 to 110] | 140 [130 to 143] |" in page
        assert "| Convoy | keras 3.15 | oneDNN |" in page
        assert "| CPU | a CPU |" in page
        assert "Commit abc1234" in page
        assert "## Dropped" not in page

    def test_16_bits_have_targets_of_their_own(self):
        found = {
            FLOAT32: {HEADLINE: turns(100), "torch": turns(150)},
            BFLOAT16: {HEADLINE: turns(80), "torch": turns(88), LIMIT: turns(40)},
        }

        assert report.verdicts("resnet50", found, BFLOAT16) == [
            "1.10 times the best peer, PyTorch (**short** of 1.2 by 8%)",
            "1.25 times Convoy in float32 (**short** of 1.5 by 17%)",
            "50% of the convolution limit",
        ]
        assert report.verdicts("efficientnet", found, BFLOAT16) == [
            "1.10 times the best peer, PyTorch",
            "1.25 times Convoy in float32",
            "50% of the convolution limit",
        ]

    def test_each_precision_has_its_tables_and_its_speed_over_float32(self):
        found = {
            FLOAT32: {HEADLINE: turns(100, 110), "torch": turns(130, 130)},
            BFLOAT16: {HEADLINE: turns(50, 55), "torch": turns(60, 44)},
        }

        page = report.page(make_result({}, workloads={"resnet50": found}))

        assert "## Training in float32: speedup of Convoy" in page
        assert "| ResNet-50 at 224, batch 8 | 153 | 1.00 [0.80 to 1.20] |" in page
        assert "precisions, interleaved: float32, bfloat16" in page
        assert "| | Convoy, bfloat16 | PyTorch, bfloat16 |".replace("| |", "|  |", 1) in page
        assert "| 2.00 [2.00 to 2.00] | 2.56 [2.17 to 2.95] |" in page

    def test_rows_that_are_lost_are_listed(self):
        found = {
            FLOAT32: {HEADLINE: turns(100), "torch": turns(130), LIMIT: turns(50)},
            BFLOAT16: {HEADLINE: turns(80), "torch": turns(60), "torch-compiled": turns(90)},
        }

        page = report.page(make_result({}, workloads={"resnet50": found}))

        lost = page.split("## Rows that Convoy loses")[1].split("##")[0].strip().splitlines()
        assert lost[2:] == [
            "| ResNet-50 at 224, batch 8 | bfloat16 | PyTorch | 0.75 [0.75 to 0.75] |"
        ]
        assert "loses\n\nNone." in report.page(make_result({HEADLINE: turns(1)}))

    def test_a_dropped_peer_is_named_with_the_reason(self):
        dropped = [["PyTorch", "every row", "no compiler"]]

        page = report.page(make_result({HEADLINE: turns(100)}, dropped=dropped))

        assert "| PyTorch | every row | no compiler |" in page

    def test_a_row_without_convoy_still_shows_the_others(self):
        page = report.page(make_result({"torch": turns(130)}))

        assert "| ResNet-50 at 224, batch 8 | 130 [130 to 130] |" in page

    @pytest.mark.parametrize(("others", "warned"), [(0.01, False), (0.3, True)])
    def test_a_noisy_machine_is_said(self, others, warned):
        page = report.page(make_result({HEADLINE: turns(100, others=others)}))

        assert ("not quiet" in page) is warned

    def test_page_figures_and_chart_are_written_under_the_date(self, tmp_path):
        result = make_result({HEADLINE: turns(100, 90), "torch": turns(130, 120)})

        path = report.write(result, tmp_path)

        assert path == tmp_path / "2026-01-31-peers.md"
        assert json.loads((tmp_path / "2026-01-31-peers.json").read_text()) == result
        assert (tmp_path / "2026-01-31-peers.png").stat().st_size > 1000

    def test_nothing_measured_draws_nothing(self, tmp_path):
        chart.draw(make_result({}), tmp_path / "chart.png")

        assert list(tmp_path.iterdir()) == []


class FakeProcess:
    """A runner whose steps take as long as its precision says."""

    order: ClassVar[list] = []

    def __init__(self, contender, log, keeps_programs):
        self.contender, self.ended = contender, False

    def prepare(self, workload, timeout):
        if self.contender.peer.name == "torch-compiled":
            raise protocol.RunnerError("no compiler")
        return protocol.Ready(1)

    def run(self, steps, timeout):
        self.order.append(self.contender.key)
        return steps * (0.1 if self.contender.precision == FLOAT32 else 0.05)

    def processor_seconds(self):
        return 0.0

    def peak_bytes(self):
        return 2 << 30

    def reset_peak(self):
        pass

    def end(self):
        self.ended = True


class TestTurns:
    @pytest.fixture
    def rounds(self, tmp_path, monkeypatch):
        monkeypatch.setattr(turn_taking, "RunnerProcess", FakeProcess)
        monkeypatch.setattr(FakeProcess, "order", [])
        started = turn_taking.Rounds(WORKLOADS["resnet50"], PEERS_SUITE, 0.0, lambda text: None)
        peers = [PEERS[name] for name in (HEADLINE, "torch", "torch-compiled")]
        started.start([Contender(p, t) for p in peers for t in (FLOAT32, BFLOAT16)], tmp_path)
        return started

    def test_precisions_take_turns_in_every_round_and_another_one_begins(self, rounds):
        rounds.calibrate()
        rounds.run_round()
        rounds.run_round()

        first, second = FakeProcess.order[:4], FakeProcess.order[4:]
        assert set(first) == {(t, n) for t in (FLOAT32, BFLOAT16) for n in (HEADLINE, "torch")}
        assert second == first[1:] + first[:1]
        found = rounds.outcome.as_json()
        assert [turn["seconds"] for turn in found[FLOAT32][HEADLINE]] == [0.2, 0.2]
        assert [turn["seconds"] for turn in found[BFLOAT16]["torch"]] == [0.1, 0.1]

    def test_one_that_fails_is_dropped_and_the_others_go_on(self, rounds):
        assert rounds.outcome.dropped == {
            (precision, "torch-compiled"): "no compiler" for precision in (FLOAT32, BFLOAT16)
        }
        assert len(rounds.runners) == 4

    def test_none_is_prepared_when_memory_is_short(self, tmp_path, monkeypatch):
        monkeypatch.setattr(turn_taking, "RunnerProcess", FakeProcess)
        monkeypatch.setattr(turn_taking, "_free_bytes", lambda: 1 << 20)
        started = turn_taking.Rounds(WORKLOADS["resnet50"], PEERS_SUITE, 0.0, lambda text: None)
        started.start([Contender(PEERS[HEADLINE], FLOAT32)], tmp_path)
        assert "too little memory" in started.outcome.dropped[FLOAT32, HEADLINE]

    def test_one_that_does_not_fit_beside_the_others_runs_beside_convoy_later(
        self, tmp_path, monkeypatch
    ):
        free = iter([16 << 30, 12 << 30, 1 << 30, 16 << 30, 12 << 30])
        monkeypatch.setattr(turn_taking, "RunnerProcess", FakeProcess)
        monkeypatch.setattr(turn_taking, "_free_bytes", lambda: next(free))
        suite = dataclasses.replace(PEERS_SUITE, prepared_at_once=1)
        started = turn_taking.Rounds(WORKLOADS["resnet50"], suite, 0.0, lambda text: None)
        chosen = [Contender(PEERS[name], FLOAT32) for name in (HEADLINE, STOCK, "torch")]

        found = []
        while chosen:
            started.start(chosen, tmp_path)
            started.calibrate()
            found.append([runner.contender.peer.name for runner in started.runners])
            started.run_round()
            chosen = started.end()

        assert found == [[HEADLINE, STOCK], [HEADLINE, "torch"]]
        rounds = {name: [t.round for t in ts] for (_, name), ts in started.outcome.turns.items()}
        assert rounds == {HEADLINE: [0, 1], STOCK: [0], "torch": [1]}
        assert not started.outcome.dropped

    def test_a_peer_far_behind_the_best_takes_one_turn(self, tmp_path, monkeypatch):
        monkeypatch.setattr(turn_taking, "RunnerProcess", FakeProcess)
        suite = dataclasses.replace(PEERS_SUITE, far_behind=4.0)
        rounds = turn_taking.Rounds(WORKLOADS["resnet50"], suite, 0.0, lambda text: None)
        rounds.start([Contender(PEERS[n], FLOAT32) for n in (HEADLINE, STOCK, "torch")], tmp_path)
        rounds.calibrate()
        slow = next(one for one in rounds.runners if one.contender.peer.name == STOCK)
        monkeypatch.setattr(slow, "run", lambda steps, timeout: steps * 0.5)

        rounds.run_round()
        rounds.run_round()

        assert {key[1]: len(found) for key, found in rounds.outcome.turns.items()} == {
            HEADLINE: 2,
            STOCK: 1,
            "torch": 2,
        }


class TestResume:
    @pytest.fixture
    def options(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run.machine, "commit", lambda: "abc1234")
        return run.parse(["--resume", "--peers", "torch", "--output", str(tmp_path)])

    def test_a_run_begins_anew_without_figures(self, options):
        assert run.open_result(options)["workloads"] == {}

    def test_an_interrupted_run_goes_on_with_its_figures(self, options):
        result = run.open_result(options)
        result["workloads"]["resnet50"] = {FLOAT32: {HEADLINE: turns(100)}}
        report.write(result, options.output)

        assert run.open_result(options) == result

    def test_a_workload_that_is_measured_again_is_forgotten(self):
        rows = {HEADLINE: turns(100)}
        result = make_result(
            rows,
            workloads={"resnet50": {FLOAT32: rows}, "toy": {FLOAT32: rows}},
            dropped=[["PyTorch", "resnet50", "no memory"], ["PyTorch", "toy", "no compiler"]],
        )

        run.forget(result, ["resnet50"])

        assert list(result["workloads"]) == ["toy"]
        assert result["dropped"] == [["PyTorch", "toy", "no compiler"]]

    def test_a_run_of_yesterday_goes_on_under_its_date(self, options):
        result = run.open_result(options) | {"date": "2026-01-31"}
        report.write(result, options.output)

        assert run.open_result(options) == result

    def test_an_older_run_of_another_commit_is_left_alone(self, options):
        report.write(make_result({}), options.output)

        assert run.open_result(options)["date"] != "2026-01-31"

    def test_a_run_of_another_commit_is_not_continued(self, options, monkeypatch):
        report.write(run.open_result(options), options.output)
        monkeypatch.setattr(run.machine, "commit", lambda: "def5678")

        with pytest.raises(SystemExit, match="another commit: abc1234, and now def5678"):
            run.open_result(options)
