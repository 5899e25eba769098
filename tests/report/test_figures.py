import re
from importlib import resources

import pytest
from convoy.report.figures import figures, table_lines
from tests.report.conftest import EPOCHS


def values(report):
    return {figure.id: figure.value for figure in figures(report)}


def test_the_figures_follow_from_the_files(recorded):
    _, _, report = recorded
    found = values(report)
    total = report.run["totals"]["devices"]["train"]
    assert found["train.steps"] == total["steps"]
    assert found["train.step_time"] == total["seconds"] / total["steps"]
    work = found["train.step_flops"]
    assert work == pytest.approx(report.programs[0]["flops"])
    rate = work / found["train.step_time"]
    peak = report.run["peak"]["flops_per_second"]
    assert found["train.utilisation"] == pytest.approx(rate / peak)
    memory = report.programs[0]["memory"]
    needed = memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]
    assert found["memory.train"] == needed
    assert found["time.checkpoints"] == EPOCHS


def test_every_figure_has_an_id_of_its_own(recorded, staged):
    for _, _, report in (recorded, staged):
        ids = [figure.id for figure in figures(report)]
        assert len(set(ids)) == len(ids)


def test_the_cards_of_the_page_are_figures(recorded, staged):
    script = resources.files("convoy.report").joinpath("assets", "figure_cards.js").read_text()
    cards = re.findall(r'"([^"]+)"', re.search(r"const CARDS = \[(.*?)\]", script, re.S)[1])
    assert len(cards) == 10
    assert set(cards) <= set(values(recorded[2])) | set(values(staged[2]))


def test_two_reports_are_compared_in_a_table(recorded):
    _, _, report = recorded
    lines = table_lines(report, report)
    assert lines[0] == "time"
    steps = next(line for line in lines if line.startswith("  steps "))
    assert re.fullmatch(r"  steps +16 +16  \+0\.0%", steps)
    assert "training" in lines
    assert any("utilisation (MFU)" in line for line in lines)
