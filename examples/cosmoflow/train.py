"""Train a network that reads cosmological parameters off volumes of matter.

    python train.py configs/graphcore.yaml

The page beside this file, README.md, has the settings, the flags, and what to expect.
"""

import sys
from pathlib import Path

from convoy.volumes.application import main  # before keras: chooses its JAX backend
from models import NETWORKS

if __name__ == "__main__":
    sys.exit(main(NETWORKS, Path(__file__).parent))
