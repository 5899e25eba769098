"""Destinations of the metrics of a run: its folder, the output and experiment trackers."""

from collections.abc import Sequence
from dataclasses import dataclass

from convoy.progress_bar import Output
from convoy.train.experiment_trackers import Tracker
from convoy.train.metrics import MetricsRow
from convoy.train.run_folder import RunFolder


@dataclass(frozen=True)
class RunLog:
    """Destinations of the metrics of a run."""

    folder: RunFolder
    output: Output
    trackers: Sequence[Tracker] = ()

    def log(self, row: MetricsRow, prefix: str) -> None:
        """Write a row to all destinations.

        Args:
            row: the metrics.
            prefix: beginning of the log line, where the output is not a terminal.
        """
        self.folder.add(row)
        self.output.line(row.sentence if self.output.is_terminal else f"{prefix}: {row.fields}")
        for tracker in self.trackers:
            tracker(row)
