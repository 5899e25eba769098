"""Runner of ONNX Runtime, with the model that `export_onnx.py` wrote.

python -m benchmarks.peers.onnx_runner
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
from benchmarks.peers import protocol
from benchmarks.peers.environments import CACHE
from benchmarks.peers.workloads import Workload


class OnnxRunner:
    """Runs inference batch by batch."""

    def __init__(self, variant: str) -> None:
        del variant

    def prepare(self, workload: Workload, precision: str) -> protocol.Ready:
        del precision
        self.workload = workload
        x, _ = workload.data()
        self.x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
        file = CACHE / f"{workload.name}.onnx"
        self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name
        self.run(workload.loop_steps)
        # The exporter counted them.
        return protocol.Ready(workload.parameters, protocol.versions())

    def run(self, steps: int) -> None:
        batch = self.workload.batch
        for index in range(steps):
            first = index % self.workload.steps * batch
            self.session.run(None, {self.input: self.x[first : first + batch]})


if __name__ == "__main__":
    protocol.serve(OnnxRunner, sys.argv[1] if len(sys.argv) > 1 else "")
