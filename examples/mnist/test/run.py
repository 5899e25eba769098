"""Run a script with digits from a file instead of a download.

    python3 test/run.py mnist.npz demo.py

The file has the arrays of `keras.datasets.mnist`: `x_train`, `y_train`, `x_test` and `y_test`.
"""

import runpy
import sys
from pathlib import Path

import convoy  # noqa: F401 - selects Keras's JAX backend
import keras
import numpy as np

file, script, *flags = sys.argv[1:]
arrays = np.load(file)
parts = tuple((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
keras.datasets.mnist.load_data = lambda: parts
sys.argv = [script, *flags]
sys.path.insert(0, str(Path(script).parent))
runpy.run_path(script, run_name="__main__")
