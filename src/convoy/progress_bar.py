"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO, TypeVar

from tqdm import tqdm

# Wider terminals get no longer bar, and narrow ones fewer values after it.
MAX_COLUMNS, MIN_BAR_COLUMNS = 100, 10
# The percentage and the remaining time.
STATUS = " 100%  1:00:00 left"
EMPTY_AND_FILLED = "─━"
# Work that is done sooner shows no bar.
QUIET_SECONDS = 2
# Time between two updates of a bar, and between two lines where there is no terminal.
BAR_SECONDS, LINE_SECONDS = 0.2, 30.0

T = TypeVar("T")


class Output:
    """The output of a run, with a progress bar if the stream is a terminal.

    Args:
        stream: destination; by default the standard output.
        line_seconds: time between two lines about the progress, where there is no terminal.
    """

    def __init__(self, stream: TextIO | None = None, line_seconds: float = LINE_SECONDS) -> None:
        self.stream = stream or sys.stdout
        self.is_terminal = self.stream.isatty()
        self._seconds = BAR_SECONDS if self.is_terminal else line_seconds
        self._shown_at = time.monotonic()
        self._bar: tqdm | None = None

    def line(self, text: str) -> None:
        """Write a line, above the bar if there is one."""
        if self._bar is None:
            print(text, file=self.stream, flush=True)
        else:
            self._bar.write(text, file=self.stream)

    def begin(self, total: int, text: str) -> None:
        """Begin some work.

        Args:
            total: number of steps.
            text: description that is shown until the first step is done.
        """
        self._shown_at = time.monotonic()
        if self.is_terminal:
            self._bar = tqdm(
                total=total,
                bar_format=text,
                ascii=EMPTY_AND_FILLED,
                ncols=_columns(),
                smoothing=0,
                leave=False,
                file=self.stream,
            )

    def is_due(self) -> bool:
        """Return whether it is time to update the bar, or to write the next line."""
        return time.monotonic() - self._shown_at >= self._seconds

    def advance(
        self, done: float, label: str, values: Mapping[str, str], line: str | None = None
    ) -> None:
        """Show that some steps are done.

        Args:
            done: number of steps since the beginning.
            label: text in front of the bar.
            values: names and values after the bar; the last ones are left out if the terminal is
                too narrow.
            line: line that is written when it is due, where there is no terminal.
        """
        bar = self._bar
        if bar is None:
            if line is not None and not self.is_terminal and self.is_due():
                self._shown_at = time.monotonic()
                self.line(line)
            return
        self._shown_at = time.monotonic()
        if not bar.initial:
            # The first steps include the compilation: the remaining time is that of the others.
            bar.initial = done
            bar.start_t = bar.last_print_t = time.time()
        shown = ""
        left = _columns() - len(label) - MIN_BAR_COLUMNS - len(STATUS)
        for name, value in values.items():
            text = "  " + f"{name} {value}".strip()
            if len(shown + text) > left:
                break
            shown += text
        bar.bar_format = f"{label} {{bar}} {{percentage:3.0f}}%  {{remaining}} left{shown}"
        bar.n = done
        bar.refresh()

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def tracked(items: Sequence[T], text: str) -> Iterable[T]:
    """Iterate over some items, with a bar on the standard error if that is a terminal.

    Args:
        items: the items.
        text: description in front of the bar.
    """
    return tqdm(
        items,
        bar_format=f"{text} {{bar}} {{percentage:3.0f}}%  {{remaining}} left",
        ascii=EMPTY_AND_FILLED,
        ncols=_columns(),
        delay=QUIET_SECONDS,
        disable=not sys.stderr.isatty(),
        leave=False,
    )


def _columns() -> int:
    return min(MAX_COLUMNS, shutil.get_terminal_size().columns - 1)
