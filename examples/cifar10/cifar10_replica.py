"""Another name of cifar10_estimator_replica.py, which Graphcore's commands use."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).with_name("cifar10_estimator_replica.py")), run_name="__main__")
