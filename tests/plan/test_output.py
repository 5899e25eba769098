from dataclasses import replace

import pytest
import yaml
from convoy.plan import output
from convoy.plan.options import PlanOptions
from convoy.plan.predict import ParallelConfiguration, Predictor
from convoy.plan.search import SearchResult, search
from tests.plan.networks import chain, machine

STAGED = ParallelConfiguration(2, 2, 8, 4, "1f1b", activation_checkpointing=True)


def predict(configuration, **changes):
    predictor = Predictor(chain(), machine(**changes), 1)
    return predictor, predictor.predict(configuration)


def test_a_table_has_a_column_for_each_cell_and_aligns_them():
    _, prediction = predict(STAGED)
    head, line = output.table([prediction]).splitlines()
    assert len(head) == len(line)
    assert line.split()[:6] == ["2", "2", "8", "4", "1f1b", "yes"]


def test_a_csv_row_has_plain_numbers():
    _, prediction = predict(replace(STAGED, micro_batch=512))
    cells = dict(zip(output.CSV_COLUMNS, output.csv_row(prediction), strict=True))
    assert float(cells["samples/s"]) == pytest.approx(prediction.throughput, rel=1e-3)
    assert float(cells["ms/update"]) == pytest.approx(1e3 * prediction.seconds, rel=1e-3)


def test_the_network_is_an_assumption_only_between_hosts():
    assert "network" not in output.assumptions(machine(4), "paper")
    several = output.assumptions(machine(32, per_host=8), "paper")
    assert "32 of 1e+03 GB, 8 on each of 4 hosts" in several
    assert "network     3.12 GB/s and 30 us between hosts" in several


def test_a_timeline_shows_one_replica():
    title, *rows = output.timeline(*predict(STAGED)).splitlines()
    assert title.startswith("4 of 4 micro-batches, ")
    assert [row.split()[1] for row in rows] == ["0", "1"]
    single = output.timeline(*predict(ParallelConfiguration(4, 1, 8, 6)))
    assert single == "every device  F0 B0 F1 B1 F2 B2 F3 B3 ... exchange update"


def test_the_smallest_configuration_is_named_if_nothing_fits():
    found = SearchResult((), 0, 7, (STAGED, 5e9))
    text = output.nothing_fits(found, machine(memory=1e9))
    assert "Nothing fits into 1 GB: of 7 configurations, the smallest takes 5 GB" in text
    assert "(2 replicas x 2 stages, micro-batch 8, 1f1b, activation checkpointing)" in text
    none = output.nothing_fits(SearchResult((), 0, 0, None), machine())
    assert none == "No parallel configuration has this global batch on these devices."


def test_a_recipe_holds_the_flags_of_the_command():
    predictor, prediction = predict(STAGED)
    flags = output.training_flags(prediction, predictor.profile, {"model": "toy"})
    assert yaml.safe_load(output.recipe(flags, "name")) == {"name": flags}
    command = output.training_command(prediction, flags, predictor.machine)
    assert command == (
        "convoy train --model toy --num-replicas 2 --micro-batch-size 8 --gradient-accumulation 4 "
        "--pipeline-splits layer2 --pipeline-schedule 1f1b --activation-checkpointing"
    )


def test_recomputing_without_a_pipeline_takes_stages_on_one_device():
    predictor, prediction = predict(ParallelConfiguration(1, 1, 8, 4, "", True), devices=1)
    flags = output.training_flags(prediction, predictor.profile, {})
    assert flags["pipeline-splits"] == ["auto", "2"]
    assert flags["device-mapping"] == [0, 0]


def test_a_page_compares_numbers_of_devices(monkeypatch):
    monkeypatch.setattr("sys.argv", ["convoy", "plan", "--model", "toy"])
    results = []
    for devices in (1, 4):
        predictor = Predictor(chain(), machine(devices), 1)
        results.append((predictor.machine, search(predictor, 64)))
    nothing = SearchResult((), 0, 1, (STAGED, 1e9))
    results.append((machine(8), nothing))
    options = PlanOptions(model="toy", devices=(1, 4, 8), global_batch=64)
    page = output.markdown(options, chain(), results)
    assert page.startswith("# toy on 1 to 8 devices, ")
    assert "    convoy plan --model toy\n" in page
    assert "| 8 | 1 | nothing fits |" in page
    assert "| 100% |" in page
    assert "| 1 | 100 |" in page  # a micro-batch and its milliseconds


def test_a_layer_takes_the_place_of_balanced_stages_for_a_target():
    profile = chain(shares=(1, 1, 2, 4))
    flags = {"pipeline-splits": ["auto", "2"], "device-mapping": [0, 0]}
    assert output.with_named_splits(flags, profile)["pipeline-splits"] == ["layer3"]
    named = {"pipeline-splits": ["layer1"]}
    assert output.with_named_splits(named, profile) == named
