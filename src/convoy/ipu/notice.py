"""What a ported script is told: once, in one line, by the log."""

from __future__ import annotations

import logging

log = logging.getLogger("convoy.ipu")

_said: set[str] = set()


def once(message: str) -> None:
    """Log a line, unless it was said before in this process."""
    if message not in _said:
        _said.add(message)
        log.warning(message)


def without_effect(names: list[str], where: str) -> None:
    """Name options that were accepted and checked, but have no meaning on these devices."""
    if names:
        once(f"No effect on these devices, and ignored in {where}: {', '.join(sorted(names))}.")
