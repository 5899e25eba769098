"""Runs a script that knows nothing of Convoy inside of a strategy's scope.

    python -m convoy.launch.plain_script script.py its arguments

`batch_size` in the script stays the global one, and batches are normalised over all replicas, so
that its results stay the same.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from convoy.strategy import Strategy


def main() -> None:
    """Run the script that the first argument names, as Python itself would."""
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    replicas = Strategy().replicas
    with Strategy(batch="global", batch_norm_group=replicas).scope():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
