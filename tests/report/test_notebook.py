"""Reports, timelines and schedules as outputs of notebook cells: those of docs/notebooks.md."""

import html
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests import parts

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.integration, parts.needs("ipykernel")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page as a notebook that was executed."""
    folder = tmp_path_factory.mktemp("notebook")
    make = runpy.run_path(str(ROOT / "examples/mnist/make_notebook.py"))["notebook"]
    (folder / "page.ipynb").write_text(make((ROOT / "docs/notebooks.md").read_text()))
    command = "-m nbconvert --to notebook --inplace --execute page.ipynb"
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of the cells, by a part of their code."""
    cells = json.loads((folder / "page.ipynb").read_text())["cells"]

    def find(code):
        (found,) = [cell for cell in cells if code in "".join(cell["source"])]
        assert found["cell_type"] == "code"
        return found["outputs"]

    return find


def data(outputs, kind):
    """Return the only output of a cell, in one of its forms."""
    (output,) = outputs
    return "".join(output["data"][kind])


def test_fit_shows_kerass_progress(outputs):
    printed = "".join(line for output in outputs("history =") for line in output["text"])
    assert printed.count("Epoch ") == 2
    assert printed.count("44/44") == 2


def test_a_recording_shows_its_page_and_its_figures(outputs):
    shown = data(outputs("as recording"), "text/html")
    (page,) = re.findall(r'<iframe srcdoc="([^"]*)"', shown)
    assert html.unescape(page).startswith("<!doctype html>")
    assert "throughput (samples)" in data(outputs("as recording"), "text/plain")


def test_two_reports_are_compared(outputs):
    (page,) = re.findall(r'srcdoc="([^"]*)"', data(outputs(".compare("), "text/html"))
    assert {'"name":"report"', '"name":"report-64"'} <= set(
        re.findall(r'"name":"report[^"]*"', html.unescape(page))
    )
    assert re.search(r"step time .*[+-]\d+\.\d%", data(outputs(".compare("), "text/plain"))


@pytest.mark.parametrize(
    ("code", "devices", "end"),
    [("get_pipeline_timeline", 2, r" ms"), ("zero-bubble", 4, " units of time")],
)
def test_timelines_and_schedules_are_images_with_text_for_terminals(outputs, code, devices, end):
    image = ElementTree.fromstring(data(outputs(code), "image/svg+xml"))
    texts = [element.text for element in image.iter() if element.tag.endswith("text")]
    assert [text for text in texts if text.startswith("device")] == [
        f"device {device}" for device in range(devices)
    ]
    assert any(re.fullmatch(rf"bubble \d+\.\d%, .*{end}", text) for text in texts)
    assert data(outputs(code), "text/plain").endswith(end)
