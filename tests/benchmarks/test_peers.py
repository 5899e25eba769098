"""The parts of the benchmark against peers that can be tested without running it."""

import dataclasses
import json
import math

import keras
import pytest
from benchmarks.peers import chart, environments, keras_models, protocol, report
from benchmarks.peers.peers import CORES, HEADLINE, LIMIT, PEERS, STOCK, taking_part
from benchmarks.peers.workloads import WORKLOADS


def turns(*milliseconds, steps=10, others=0.0):
    return [
        {"steps": steps, "seconds": steps * value / 1e3, "others": others} for value in milliseconds
    ]


def make_result(rows, name="resnet50", **changes):
    return {
        "date": "2026-01-31",
        "commit": "abc1234",
        "machine": {"CPU": "a CPU", "cores": "2"},
        "settings": {"rounds": 3, "seconds_per_turn": 3.0},
        "peers": {HEADLINE: {"versions": {"keras": "3.15"}, "note": "oneDNN"}},
        "dropped": [],
        "workloads": {name: rows},
    } | changes


class FakeRunner:
    def __init__(self):
        self.steps = []

    def prepare(self, workload):
        return protocol.Ready(workload.parameters, {"numpy": "2.0"}, "fine")

    def run(self, steps):
        if steps > 100:
            raise MemoryError("too much\nand more")
        self.steps.append(steps)


class TestProtocol:
    def test_prepare_is_answered_with_what_the_runner_tells(self):
        answer = protocol.reply(FakeRunner(), "prepare mnist\n")

        assert protocol.parse_ready(answer) == protocol.Ready(34_826, {"numpy": "2.0"}, "fine")

    def test_run_is_answered_with_seconds(self):
        runner = FakeRunner()

        assert protocol.parse_seconds(protocol.reply(runner, "run 20\n")) >= 0
        assert runner.steps == [20]

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ("run 1000", "MemoryError: too much"),
            ("prepare nothing", "KeyError: 'nothing'"),
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
    # The two of `keras.applications` take seconds to build, even without values for their weights;
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

    def test_convoy_takes_part_in_everything(self):
        assert PEERS[HEADLINE] in taking_part("training")
        assert PEERS[HEADLINE] in taking_part("inference")


class TestRatios:
    def test_a_ratio_is_taken_within_each_round(self):
        # The machine was half as fast in the last round, for both.
        ratio = report.speedup(turns(10, 10, 20), turns(20, 22, 42))

        assert ratio == report.Spread(pytest.approx(2.1), pytest.approx(2.0), pytest.approx(2.2))

    def test_steps_need_not_be_as_many(self):
        ratio = report.speedup(turns(10, steps=4), turns(30, steps=2))

        assert ratio.middle == pytest.approx(3)

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

        assert report.verdicts("resnet50", rows) == [
            "1.30 times the best peer, PyTorch",
            "3.00 times Keras on JAX",
            "80% of the convolution limit",
        ]

    def test_a_row_that_falls_short_says_by_how_much(self):
        rows = {HEADLINE: turns(100), "torch": turns(90), STOCK: turns(200), LIMIT: turns(60)}

        assert report.verdicts("resnet50", rows) == [
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
