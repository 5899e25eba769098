"""CosmoFlow at 128x128x128x4 by the reference recipe of MLPerf HPC, to be compiled for a target.

    convoy compile --target tpu:v5e:4x4 benchmarks/compile_cosmoflow.py
    convoy compile --target gpu:h100:8 benchmarks/compile_cosmoflow.py --precision mixed_bfloat16

Network, micro-batch and optimizer are those of `examples/cosmoflow/configs/mlperf.yaml`,
on all devices of the target. Volumes are zeros: only their shapes matter.
"""

import argparse
import sys
from pathlib import Path

import convoy
import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "cosmoflow"))

from models.cosmoflow import mlperf

SHAPE, TARGETS, MICRO_BATCH = (128, 128, 128, 4), 4, 4


class Volumes(keras.utils.PyDataset):
    """Micro-batches of zeros."""

    def __init__(self, steps: int) -> None:
        super().__init__(workers=0)
        self.steps = steps

    @property
    def num_batches(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.zeros((MICRO_BATCH, *SHAPE), np.float32)
        return x, np.zeros((MICRO_BATCH, TARGETS), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", default="float32")
    strategy = convoy.Strategy(precision=parser.parse_args().precision)
    with strategy.scope():
        model = mlperf(SHAPE, TARGETS, fc1_size=128, fc2_size=64)
        model.compile(keras.optimizers.SGD(0.001, momentum=0.9), "mse", metrics=["mae"])
    model.fit(Volumes(strategy.replicas), verbose=0)


if __name__ == "__main__":
    main()
