"""Environment variables that disable a feature."""

import os


def is_off(variable: str) -> bool:
    """Return whether an environment variable disables a feature: `0`, `false`, `off` or `no`."""
    return os.environ.get(variable, "").strip().lower() in ("0", "false", "off", "no")
