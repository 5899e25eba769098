"""Export of the inference workloads from PyTorch to ONNX files, for ONNX Runtime and OpenVINO.

python -m benchmarks.peers.export_onnx
"""

from __future__ import annotations

import torch
from benchmarks.peers import protocol, torch_models
from benchmarks.peers.environments import CACHE
from benchmarks.peers.workloads import WORKLOADS


def main() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    for workload in WORKLOADS.values():
        file = CACHE / f"{workload.name}.onnx"
        if workload.kind != "inference" or file.exists():
            continue
        torch.manual_seed(0)
        model = getattr(torch_models, workload.network)().eval()
        found = sum(weight.numel() for weight in model.parameters())
        protocol.check_parameters(workload, found)
        height, width, channels = workload.input_shape
        example = torch.zeros(workload.batch, channels, height, width)
        torch.onnx.export(model, (example,), file, external_data=False)


if __name__ == "__main__":
    main()
