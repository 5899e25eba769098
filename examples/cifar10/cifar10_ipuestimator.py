"""The same as cifar10_ipu_estimator.py, by the name that commands use."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).with_name("cifar10_ipu_estimator.py")), run_name="__main__")
