import json
import re
import shutil

import pytest
from convoy_command import cli

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(recorded, tmp_path):
    _, _, report = recorded
    shutil.copytree(report.folder, tmp_path / "one")
    return tmp_path / "one"


def test_a_page_and_a_trace_are_made(folder, capsys):
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^  steps +16$", shown, re.M)
    assert str(folder / "report.html") in shown
    page = (folder / "report.html").read_text()
    assert "{{" not in page.split("<script")[0]
    # All of it is in the page: it asks for nothing.
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "http" not in re.sub(r"https?://www.w3.org\S*", "", page)


def test_the_trace_is_json(folder):
    assert cli.main(["report", str(folder)]) == 0
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]


def test_two_runs_are_compared(folder, staged, capsys):
    _, _, other = staged
    assert cli.main(["report", str(folder), str(other.folder)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^  steps +16 +16  \+0.0%$", shown, re.M)
    assert re.search(r"^  compiled programs +2 +\d+  \+", shown, re.M)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "there is no such folder"),
        ("empty", "has no report"),
        ("damaged", "is damaged"),
    ],
)
def test_what_is_no_report_is_one_line_and_status_2(
    folder, tmp_path, capsys, name, message, second
):
    (tmp_path / "empty").mkdir()
    shutil.copytree(folder, tmp_path / "damaged")
    (tmp_path / "damaged" / "run.json").write_text('{"format": "convoy-rep')
    words = [str(folder)] * second + [str(tmp_path / name)]
    assert cli.main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert error.startswith("convoy report: error: ")


def test_a_page_that_cannot_be_written_is_one_line(folder, capsys):
    assert cli.main(["report", str(folder), "--page", str(folder / "no" / "page.html")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
