"""The zoo: its list, its networks, its page, and a run with one tiny network."""

import inspect
import json
import math

import keras
import pytest
from benchmarks.peers import environments, keras_models, run, zoo_report
from benchmarks.peers.peers import BFLOAT16, FLOAT32, HEADLINE, PEERS, PRODUCTS_LIMIT, STOCK
from benchmarks.peers.suites import PEERS_SUITE, WORKLOADS, ZOO_SUITE
from benchmarks.peers.zoo import APPLICATIONS, ZOO
from tests.benchmarks.test_peers import make_result, turns

OWN = [work for work in ZOO.values() if work.source == "zoo_networks" and work.kind == "training"]


class TestList:
    def test_every_model_of_keras_applications_is_in_it(self):
        models = inspect.getmembers(keras.applications, inspect.isfunction)

        assert sorted(APPLICATIONS) == sorted(name for name, _ in models)

    def test_every_network_is_trained_and_used_for_prediction(self):
        names = [name.lower() for name in APPLICATIONS]
        names += [work.network.replace("_", "-") for work in OWN]

        assert list(ZOO) == [f"{name}-{kind}" for name in names for kind in ("fit", "predict")]

    def test_no_name_is_one_of_the_other_page(self):
        assert not ZOO.keys() & PEERS_SUITE.workloads.keys()
        assert len(WORKLOADS) == len(ZOO) + len(PEERS_SUITE.workloads)

    @pytest.mark.parametrize("kind", ["training", "prediction"])
    def test_convoy_and_keras_on_each_backend_take_part(self, kind):
        found = {one.key for one in ZOO_SUITE.contenders(kind, precisions=[FLOAT32, BFLOAT16])}

        names = {HEADLINE, STOCK, "keras-tensorflow", "keras-torch", PRODUCTS_LIMIT}
        assert found == {(precision, name) for precision in (FLOAT32, BFLOAT16) for name in names}


class TestNetworks:
    # Those of `keras.applications` take seconds to build, even without values for their weights.
    @pytest.mark.parametrize("work", OWN, ids=lambda work: work.name)
    def test_a_network_fits_its_data(self, work):
        with keras.StatelessScope(initialize_variables=False):
            model = keras_models.make(work)

        assert model.input_shape == (None, *work.input_shape)
        assert model.output_shape == (None, *work.target_shape, work.outputs)
        assert sum(math.prod(weight.shape) for weight in model.trainable_weights) > 50_000

    def test_a_model_of_keras_applications_has_the_image_size(self):
        with keras.StatelessScope(initialize_variables=False):
            model = keras_models.make(ZOO["mobilenet-fit"])

        assert model.input_shape == (None, 160, 160, 3)
        assert model.output_shape == (None, 1000)

    def test_targets_may_have_axes_of_their_own(self):
        x, y = ZOO["unet-fit"].data()

        assert x.shape == (64, 128, 128, 3)
        assert y.shape == (64, 128, 128)
        assert y.max() == 2


class TestPage:
    def page(self, rows, name="vgg16-fit", **changes):
        start = {
            "seconds": 12.3,
            "cpu_seconds": 20.0,
            "peak_bytes": 3 << 30,
            "turns_peak_bytes": 1 << 30,
        }
        starts = {name: {FLOAT32: dict.fromkeys(rows, start)}}
        return zoo_report.page(make_result(rows, name, starts=starts, **changes))

    def test_a_row_is_compared_with_the_best_backend(self):
        rows = {HEADLINE: turns(100, 120), STOCK: turns(300, 300), "keras-torch": turns(150, 180)}

        page = self.page(rows | {PRODUCTS_LIMIT: turns(80, 96)})

        assert (
            "| VGG16, batch 8 | Keras on torch | 1.50 [1.50 to 1.50] | 1.50 [1.50 to 1.50] "
            "| 110 (220) | 300 (600) | 165 (330) | 80% |"
        ) in page
        assert "| Training, by time | 1 | 1.50 | 1.50 | 1 | 0 |" in page
        assert "| VGG16 | 12.3 (20.0); 3,072, 1,024 |" in page

    def test_the_best_backend_by_cpu_time_may_be_another_one(self):
        rows = {
            HEADLINE: turns(100, cpu_factor=1.5),
            STOCK: turns(300, cpu_factor=1.0),
            "keras-torch": turns(200, cpu_factor=2.0),
        }

        assert "| Keras on torch | 2.00 [2.00 to 2.00] | 2.00 [2.00 to 2.00] |" in self.page(rows)
        assert zoo_report.best_speedup(rows, "cpu_seconds").middle == pytest.approx(2)

    def test_a_row_below_the_aim_is_bold_and_profiled(self):
        rows = {HEADLINE: turns(100), "keras-torch": turns(110)}
        kind = {"kind": "dot, forward", "count": 3, "seconds": 0.05, "flops": 1e9, "bytes": 1e9}
        profile = {
            "step_seconds": 0.1,
            "kinds": [kind],
            "peak": {"flops": 100e9, "bytes": 10e9},
        }

        page = self.page(rows, profiles={"vgg16-fit": profile})

        assert "| **1.10 [1.10 to 1.10]** |" in page
        assert "### VGG16, training" in page
        assert "| dot, forward | 3 | 50.0 | 100% | 1.00 | 1.00 | 100.0 |" in page

    @pytest.mark.parametrize(("theirs", "needed"), [(110, True), (130, False)])
    def test_only_rows_below_the_aim_are_profiled(self, theirs, needed):
        rows = {HEADLINE: turns(100), "keras-torch": turns(theirs)}

        assert run.needs_profile(ZOO_SUITE, {FLOAT32: rows}) is needed
        assert not run.needs_profile(PEERS_SUITE, {FLOAT32: rows})


@pytest.mark.slow
def test_a_quick_run_of_a_tiny_network_writes_the_page(tmp_path, monkeypatch, capsys):
    # Keras on JAX is in the environment of the tests.
    monkeypatch.setattr(environments, "build", lambda name: "")
    monkeypatch.setattr(environments, "python", lambda name: environments.Path(run.sys.executable))
    monkeypatch.setattr(run, "LOGS", tmp_path)
    words = ["--suite", "zoo", "--quick", "--no-profiles", "--workloads", "lstm-predict"]

    run.run(run.parse([*words, "--peers", STOCK, "--output", str(tmp_path)]))

    (figures,) = tmp_path.glob("*-zoo.json")
    result = json.loads(figures.read_text())
    assert result["dropped"] == []
    assert set(result["workloads"]["lstm-predict"][FLOAT32]) == {HEADLINE, STOCK}
    start = result["starts"]["lstm-predict"][FLOAT32][HEADLINE]
    assert start["peak_bytes"] > 100 << 20
    assert "## Prediction in float32" in figures.with_suffix(".md").read_text()
    assert PEERS[STOCK].title in capsys.readouterr().out
