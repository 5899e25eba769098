"""The HTML page of a report: one self-contained file that opens offline."""

import json
from importlib import resources

from convoy.report import figures
from convoy.report.files import Report, finite

SCRIPTS = (
    "format.js",
    "plot.js",
    "timeline.js",
    "curves.js",
    "figure_cards.js",
    "times.js",
    "pipelines.js",
    "memory.js",
    "operations.js",
    "metrics.js",
    "classification.js",
    "main.js",
)


def make_page(report: Report, other: Report | None = None) -> str:
    """Return the page of a report, or of the comparison of two."""
    reports = [
        one.to_json() | {"figures": figures.to_json(one)}
        for one in (report, other)
        if one is not None
    ]
    # Inside a script element, only `<` could end the data early.
    data = json.dumps(finite(reports), separators=(",", ":")).replace("<", "\\u003c")
    page = _asset("page.html")
    for name, text in (
        ("style", _asset("style.css")),
        ("script", "\n".join(map(_asset, SCRIPTS))),
        ("data", data),
    ):
        page = page.replace("{{" + name + "}}", text)
    return page


def _asset(name: str) -> str:
    return resources.files("convoy.report").joinpath("assets", name).read_text(encoding="utf-8")
