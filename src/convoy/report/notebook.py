"""Reports as the output of notebook cells."""

import html

from convoy.report.figures import table_lines
from convoy.report.files import Report
from convoy.report.page import make_page

HEIGHT = 640
"""Height of the page in pixels; it scrolls."""


def display_data(report: Report, other: Report | None = None) -> dict[str, str]:
    """Return a report, or the comparison of two, as the output of a cell.

    Returns:
        The page in a frame, so that its style and the notebook's do not mix, and the figures as
        text.
    """
    # Without a permission for its origin, the page cannot reach the notebook's data.
    page = (
        f'<iframe srcdoc="{html.escape(make_page(report, other))}" title="report" width="100%" '
        f'height="{HEIGHT}" sandbox="allow-scripts" style="border: 1px solid #8888"></iframe>'
    )
    return {"text/html": page, "text/plain": "\n".join(table_lines(report, other))}


class Comparison:
    """Two reports side by side, as the output of a cell.

    Args:
        report: a report.
        other: a report to compare with.
    """

    def __init__(self, report: Report, other: Report) -> None:
        self.report, self.other = report, other

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return display_data(self.report, self.other)
