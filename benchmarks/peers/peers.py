"""Peers: the environment, the runner and the settings of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.peers.environments import CACHE, OURS


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
        variables: environment variables of its process.
    """

    name: str
    title: str
    environment: str
    runner: str
    variant: str
    training: bool = True
    inference: bool = False
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
            variables={"TF_CPP_MIN_LOG_LEVEL": "2"},
        ),
        Peer("keras-torch", "Keras on torch", "torch", "keras_runner", "torch"),
        Peer("torch", "PyTorch", "torch", "torch_runner", "eager", inference=True),
        Peer(
            "torch-compiled",
            "PyTorch compiled",
            "torch",
            "torch_runner",
            "compiled",
            inference=True,
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
        # Not a peer but a mark: what is left when a step is nothing but its convolutions.
        Peer(LIMIT, "convolutions alone", "torch", "torch_runner", "convolutions"),
    )
}


def taking_part(kind: str) -> list[Peer]:
    """Return the peers of a kind of workload, `training` or `inference`."""
    return [peer for peer in PEERS.values() if getattr(peer, kind)]
