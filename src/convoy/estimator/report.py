"""What a network's programs were, and how they ran: a folder for each network."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from convoy.estimator.network import Network
from convoy.report.files import new_folder
from convoy.report.recording import Recording


@contextlib.contextmanager
def reported(folder: str | os.PathLike[str] | None, network: Network) -> Iterator[None]:
    """Record what a network does in the block, if there is a folder for it.

    All runs of a network go into one report, as they run the same programs.

    Args:
        folder: where the report's own folder is made; `None` writes nothing.
        network: what runs.
    """
    if folder is None:
        yield
        return
    if network.recording is None:
        network.recording = Recording(new_folder(folder), network.strategy.devices)
    network.recording.observe(network.strategy)
    try:
        yield
    finally:
        network.recording.stop_observing()
