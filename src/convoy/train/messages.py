"""Messages of `convoy train` on the standard error."""

import sys


def notify(text: str) -> None:
    """Print a line that begins with the command."""
    print(f"convoy train: {text}", file=sys.stderr)
