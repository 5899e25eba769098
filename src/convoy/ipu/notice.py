"""Log messages about options that are ignored, each logged once per process."""

import logging
from collections.abc import Mapping

log = logging.getLogger("convoy.ipu")

_logged: set[str] = set()


def once(message: str) -> None:
    """Log a warning, unless the same one was logged before."""
    if message not in _logged:
        _logged.add(message)
        log.warning(message)


def no_effect(where: str, options: Mapping[str, object]) -> None:
    """Name the options that were set, but have no meaning on these devices.

    Args:
        where: the function or class that takes the options.
        options: values by name; those that are false, empty or `None` are not set.
    """
    names = sorted(name for name, value in options.items() if value)
    if names:
        once(f"No effect on these devices, and ignored in {where}: {', '.join(names)}.")
