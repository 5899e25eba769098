"""Train a network that predicts cosmological parameters from 3-D matter distributions.

    python train.py configs/graphcore.yaml

README.md beside this file describes the settings, the flags and the expected results.
"""

import sys
from pathlib import Path

from cosmoflow.application import main  # before keras: selects its JAX backend
from models import NETWORKS

if __name__ == "__main__":
    sys.exit(main(NETWORKS, Path(__file__).parent))
