"""Runs a script that does not use Convoy inside a strategy's scope.

    python -m convoy.launch.plain_script script.py its arguments

`batch_size` in the script remains the global batch size, and batch normalisation is synchronised
over all replicas, so the results stay the same.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from convoy.strategy import Strategy


def main() -> None:
    """Run the script that the first argument names, as Python would."""
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    replicas = Strategy().replicas
    with Strategy(batch="global", batch_norm_group=replicas).scope():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
