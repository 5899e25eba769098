"""Runs a script that does not use Convoy inside a strategy's scope.

    python -m convoy.launch.plain_script script.py its arguments

`batch_size` in the script remains the global batch size, and batch normalisation is synchronised
over all replicas, so the results stay the same.
"""

import sys

from convoy.strategy import Strategy
from convoy_command.program import run_script


def main() -> None:
    """Run the script in the first argument, as Python would."""
    sys.argv = sys.argv[1:]
    replicas = Strategy().replicas
    with Strategy(batch="global", batch_norm_group=replicas).scope():
        run_script()


if __name__ == "__main__":
    main()
