"""`convoy report`: a page and a trace from the files of a report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from convoy.report.chrome import chrome_trace
from convoy.report.files import Report, ReportError, read
from convoy.report.page import make_page
from convoy.report.summary import figures
from convoy.units import format_value
from convoy_command.parser import Parser


def make_parser() -> Parser:
    parser = Parser(
        prog="convoy report",
        description="Make one HTML page of a recorded run, or of two beside each other, and a "
        "trace that Perfetto opens.",
    )
    parser.add_argument("folder", type=Path, help="of strategy.record(), or convoy train --report")
    parser.add_argument("other", type=Path, nargs="?", help="a report to compare it with")
    parser.add_argument("--page", type=Path, help="where the page goes (FOLDER/report.html)")
    parser.add_argument("--trace", type=Path, help="where the trace goes (FOLDER/trace.json)")
    return parser


def main(words: Sequence[str]) -> int:
    """Make a page of a recorded run, or of two beside each other."""
    options = make_parser().parse_args(list(words))
    try:
        report = read(options.folder)
        other = None if options.other is None else read(options.other)
        page = options.page or options.folder / "report.html"
        trace = options.trace or options.folder / "trace.json"
        page.write_text(make_page(report, other), encoding="utf-8")
        trace.write_text(json.dumps(chrome_trace(report)))
    except ReportError as error:
        print(f"convoy report: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"convoy report: error: {error.filename} cannot be written: {error.strerror}. Pass "
            "--page and --trace.",
            file=sys.stderr,
        )
        return 2
    _print(report, other)
    print(f"\npage   {page}\ntrace  {trace} (open it in https://ui.perfetto.dev)")
    return 0


def _print(report: Report, other: Report | None) -> None:
    """Print the figures; of two reports, with how they differ."""
    beside = {(f.group, f.name): f for f in figures(other)} if other is not None else {}
    group = ""
    for figure in figures(report):
        if figure.group != group:
            group = figure.group
            print(f"\n{group}" if group != "time" else group)
        text = f"  {figure.name:<44} {format_value(figure.value, figure.unit):>14}"
        second = beside.get((figure.group, figure.name))
        if second is not None:
            text += f" {format_value(second.value, second.unit):>14}"
            text += _change(figure.value, second.value)
        print(text)


def _change(value: float | None, other: float | None) -> str:
    if not value or other is None:
        return ""
    return f"  {other / value - 1:+.1%}"
