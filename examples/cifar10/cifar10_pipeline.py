"""Another name of cifar10_pipeline_estimator.py, which Graphcore's commands use."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).with_name("cifar10_pipeline_estimator.py")), run_name="__main__")
