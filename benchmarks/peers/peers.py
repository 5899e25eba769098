"""Peers: the environment, the runner and the settings of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.peers.environments import CACHE, OURS

FLOAT32, BFLOAT16, FLOAT16 = PRECISIONS = ("float32", "bfloat16", "float16")
"""The types that networks compute in; weights and optimizers of training are in float32."""


@dataclass(frozen=True)
class Peer:
    """One column of the page.

    Attributes:
        name: the name on the command line.
        title: the name on the page.
        environment: the environment its runner lives in.
        runner: the module to run.
        variant: handed to the runner, which may serve several peers.
        variables: environment variables of its process.
        programs: further ones with which it keeps compiled programs, so that a second run warms up
            faster.
    """

    name: str
    title: str
    environment: str
    runner: str
    variant: str
    variables: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)


HEADLINE = "convoy"
CORES = "convoy-cores"
STOCK = "keras-jax"
LIMIT = "limit"
PRODUCTS_LIMIT = "products-limit"
MARKS = (LIMIT, PRODUCTS_LIMIT)
"""Not peers: what is left when a step is nothing but its convolutions, and matrix products."""

_NO_PROGRAMS = {"CONVOY_COMPILATION_CACHE": "0"}
_CONVOY_PROGRAMS = {"CONVOY_COMPILATION_CACHE": str(CACHE / "convoy")}
_JAX_PROGRAMS = {"JAX_COMPILATION_CACHE_DIR": str(CACHE / "jax")}
_TORCH_PROGRAMS = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor")}

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            HEADLINE,
            "Convoy",
            OURS,
            "keras_runner",
            "convoy",
            variables=_NO_PROGRAMS,
            programs=_CONVOY_PROGRAMS,
        ),
        Peer(
            CORES,
            "Convoy, one device a core",
            OURS,
            "keras_runner",
            "convoy-cores",
            variables=_NO_PROGRAMS,
            programs=_CONVOY_PROGRAMS,
        ),
        Peer(STOCK, "Keras on JAX", "keras-jax", "keras_runner", "jax", programs=_JAX_PROGRAMS),
        Peer(
            "keras-tensorflow",
            "Keras on TensorFlow",
            "tensorflow",
            "keras_runner",
            "tensorflow",
            variables={"TF_CPP_MIN_LOG_LEVEL": "2"},
        ),
        Peer("keras-torch", "Keras on torch", "torch", "keras_runner", "torch"),
        Peer("torch", "PyTorch", "torch", "torch_runner", "eager"),
        Peer(
            "torch-compiled",
            "PyTorch compiled",
            "torch",
            "torch_runner",
            "compiled",
            programs=_TORCH_PROGRAMS,
        ),
        Peer("onnxruntime", "ONNX Runtime", "onnxruntime", "onnx_runner", ""),
        Peer("openvino", "OpenVINO", "openvino", "openvino_runner", ""),
        Peer(LIMIT, "convolutions alone", "torch", "torch_runner", "convolutions"),
        Peer(
            PRODUCTS_LIMIT,
            "convolutions and matrix products alone",
            "torch",
            "limit_runner",
            "products",
        ),
    )
}


@dataclass(frozen=True)
class Contender:
    """A peer in one precision, which takes turns with the others."""

    peer: Peer
    precision: str

    @property
    def key(self) -> tuple[str, str]:
        return self.precision, self.peer.name

    @property
    def title(self) -> str:
        return f"{self.peer.title}, {self.precision}"
