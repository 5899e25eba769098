import json
import math

import pytest
from convoy.report.files import ReportError, ReportWriter, new_folder, read, write


@pytest.fixture
def folder(tmp_path):
    files = ReportWriter(tmp_path / "report")
    about = dict.fromkeys(
        ("state", "error", "began", "seconds", "devices", "framework", "peak", "runs", "totals")
    )
    files.write_run(about)
    files.write_part(0, {"calls": [[1]], "spans": [["input", 0, 1]]})
    files.write_part(1, {"calls": [[2]]})
    return tmp_path / "report"


def test_parts_are_put_together_in_order(folder):
    report = read(folder)
    assert report.parts["calls"] == [[1], [2]]
    assert report.parts["spans"] == [["input", 0, 1]]
    assert report.parts["epochs"] == []


def test_a_new_report_takes_the_place_of_an_old_one(folder):
    (folder / "notes.txt").write_text("mine")
    ReportWriter(folder)
    assert sorted(path.name for path in folder.rglob("*")) == ["notes.txt", "parts", "programs"]


def test_numbers_that_json_does_not_have_are_written_as_text(tmp_path):
    write(tmp_path / "a.json", {"loss": [math.nan, math.inf, 1.5]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": ["nan", "inf", 1.5]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda folder: (folder / "run.json").unlink(), "has no report: there is no run.json"),
        (lambda folder: (folder / "run.json").write_text('{"form'), "run.json is damaged"),
        (lambda folder: (folder / "run.json").write_text("[]"), "run.json is damaged: it is not"),
        (lambda folder: (folder / "run.json").write_text("{}"), "is not a report"),
        (
            lambda folder: (folder / "run.json").write_text('{"format":"convoy-report"}'),
            "has version None",
        ),
        (
            lambda folder: (folder / "run.json").write_text(
                '{"format":"convoy-report","version":1}'
            ),
            "run.json is damaged: it has no 'state'",
        ),
        (lambda folder: (folder / "parts" / "000001.json").write_bytes(b"\xff"), "000001.json is"),
        (lambda folder: (folder / "programs" / "0000.json").write_text("{}"), "has no 'name'"),
    ],
)
def test_what_cannot_be_read_is_one_line(folder, damage, match):
    damage(folder)
    with pytest.raises(ReportError, match=match) as error:
        read(folder)
    assert "\n" not in str(error.value)


def test_a_folder_of_reports_names_them(folder):
    with pytest.raises(ReportError, match="There are reports in it: report"):
        read(folder.parent)
    with pytest.raises(ReportError, match="there is no such folder"):
        read(folder / "nowhere")


def test_folders_are_named_by_time_and_process(tmp_path):
    first, second = new_folder(tmp_path), new_folder(tmp_path)
    assert first.name < second.name
    assert first.name.startswith("tf_report__")
