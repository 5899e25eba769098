"""`convoy report`: the page and the trace of a recorded run, or the comparison of two."""

import json
from collections.abc import Sequence
from pathlib import Path

from convoy.error_messages import system_reason
from convoy.report.chrome_trace import chrome_trace
from convoy.report.figures import table_lines
from convoy.report.files import ReportError, read
from convoy.report.page import make_page
from convoy_command.parser import Parser, failed

PROGRAM = "convoy report"


def make_parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description="Make an HTML page of a recorded run, or compare two, and write a trace for "
        "Perfetto.",
    )
    parser.add_argument(
        "folder", type=Path, help="a folder of strategy.record() or convoy train --report"
    )
    parser.add_argument("other", type=Path, nargs="?", help="a report to compare with")
    parser.add_argument("--page", type=Path, help="file of the page (FOLDER/report.html)")
    parser.add_argument("--trace", type=Path, help="file of the trace (FOLDER/trace.json)")
    return parser


def main(words: Sequence[str]) -> int:
    """Make an HTML page of a recorded run, or compare two."""
    options = make_parser().parse_args(list(words))
    try:
        report = read(options.folder)
        other = None if options.other is None else read(options.other)
        page = options.page or options.folder / "report.html"
        trace = options.trace or options.folder / "trace.json"
        page.write_text(make_page(report, other), encoding="utf-8")
        trace.write_text(json.dumps(chrome_trace(report)))
    except ReportError as error:
        return failed(PROGRAM, error, 2)
    except OSError as error:
        reason = system_reason(error)
        problem = f"{error.filename} cannot be written: {reason}. Pass --page and --trace."
        return failed(PROGRAM, problem, 2)
    print("\n".join(table_lines(report, other)))
    print(f"\npage   {page}\ntrace  {trace} (open it in https://ui.perfetto.dev)")
    return 0
