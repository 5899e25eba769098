"""Runner of OpenVINO, with the model that `export_onnx.py` wrote.

python -m benchmarks.peers.openvino_runner
"""

from __future__ import annotations

import sys

import numpy as np
import openvino
from benchmarks.peers import protocol
from benchmarks.peers.environments import CACHE
from benchmarks.peers.workloads import Workload

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class OpenVinoRunner:
    """Runs inference batch by batch, one request at a time on all cores."""

    def __init__(self, variant: str) -> None:
        del variant

    def prepare(self, workload: Workload, precision: str) -> protocol.Ready:
        self.workload = workload
        x, _ = workload.data()
        self.x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
        settings = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
            "PERFORMANCE_HINT": "LATENCY",
        }
        core = openvino.Core()
        model = core.read_model(CACHE / f"{workload.name}.onnx")
        compiled = core.compile_model(model, "CPU", settings)
        self.request = compiled.create_infer_request()
        self.run(workload.loop_steps)
        used = compiled.get_property("INFERENCE_PRECISION_HINT")
        # The exporter counted the parameters.
        note = f"computes in {used.get_type_name()}"
        return protocol.Ready(workload.parameters, protocol.versions(), note)

    def run(self, steps: int) -> None:
        batch = self.workload.batch
        for index in range(steps):
            first = index % self.workload.steps * batch
            outputs = self.request.infer([self.x[first : first + batch]], share_inputs=True)
            np.asarray(outputs[0])


if __name__ == "__main__":
    protocol.serve(OpenVinoRunner, sys.argv[1] if len(sys.argv) > 1 else "")
