"""Peers: the environment, the runner, the precisions and the settings of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.environments import CACHE, OURS

FLOAT32, BFLOAT16, FLOAT16 = PRECISIONS = ("float32", "bfloat16", "float16")
"""The types that networks compute in; weights and optimizers of training are in float32."""
_BOTH = (FLOAT32, BFLOAT16)


@dataclass(frozen=True)
class Peer:
    """One column of the page.

    Attributes:
        name: the name on the command line.
        title: the name on the page.
        environment: the environment its runner lives in.
        runner: the module to run.
        variant: handed to the runner, which may serve several peers.
        training: whether it takes part in the training workloads.
        inference: whether it takes part in the inference workloads.
        precisions: the precisions that it runs in.
        variables: environment variables of its process.
    """

    name: str
    title: str
    environment: str
    runner: str
    variant: str
    training: bool = True
    inference: bool = False
    precisions: tuple[str, ...] = (FLOAT32,)
    variables: Mapping[str, str] = field(default_factory=dict)


HEADLINE = "convoy"
CORES = "convoy-cores"
STOCK = "keras-jax"
LIMIT = "limit"

# Compiled programs are kept, so that a second run warms up faster.
_CONVOY_CACHE = {"CONVOY_COMPILATION_CACHE": str(CACHE / "convoy")}
_JAX_CACHE = {"JAX_COMPILATION_CACHE_DIR": str(CACHE / "jax")}
_TORCH_CACHE = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor")}

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            HEADLINE,
            "Convoy",
            OURS,
            "keras_runner",
            "convoy",
            inference=True,
            precisions=PRECISIONS,
            variables=_CONVOY_CACHE,
        ),
        Peer(
            CORES,
            "Convoy, one device a core",
            OURS,
            "keras_runner",
            "convoy-cores",
            variables=_CONVOY_CACHE,
        ),
        Peer(STOCK, "Keras on JAX", "keras-jax", "keras_runner", "jax", variables=_JAX_CACHE),
        Peer(
            "keras-tensorflow",
            "Keras on TensorFlow",
            "tensorflow",
            "keras_runner",
            "tensorflow",
            inference=True,
            precisions=_BOTH,
            variables={"TF_CPP_MIN_LOG_LEVEL": "2"},
        ),
        Peer("keras-torch", "Keras on torch", "torch", "keras_runner", "torch"),
        Peer(
            "torch", "PyTorch", "torch", "torch_runner", "eager", inference=True, precisions=_BOTH
        ),
        Peer(
            "torch-compiled",
            "PyTorch compiled",
            "torch",
            "torch_runner",
            "compiled",
            inference=True,
            precisions=_BOTH,
            variables=_TORCH_CACHE,
        ),
        Peer(
            "onnxruntime",
            "ONNX Runtime",
            "onnxruntime",
            "onnx_runner",
            "",
            training=False,
            inference=True,
        ),
        Peer(
            "openvino",
            "OpenVINO",
            "openvino",
            "openvino_runner",
            "",
            training=False,
            inference=True,
            precisions=_BOTH,
        ),
        # Not a peer but a mark: what is left when a step is nothing but its convolutions.
        Peer(
            LIMIT,
            "convolutions alone",
            "torch",
            "torch_runner",
            "convolutions",
            precisions=_BOTH,
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


def contenders(
    kind: str, peers: Collection[str] = tuple(PEERS), precisions: Sequence[str] = PRECISIONS
) -> list[Contender]:
    """Return the contenders of a kind of workload, `training` or `inference`.

    Args:
        kind: kind of workload.
        peers: names of the peers; Convoy always takes part.
        precisions: the precisions.
    """
    return [
        Contender(peer, precision)
        for peer in PEERS.values()
        if getattr(peer, kind) and peer.name in {HEADLINE, *peers}
        for precision in precisions
        if precision in peer.precisions
    ]
