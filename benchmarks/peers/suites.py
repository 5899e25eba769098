"""Suites: the workloads of a page, the peers in each of their kinds, and how they take turns."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers import workloads, zoo
from benchmarks.peers.peers import (
    BFLOAT16,
    CORES,
    FLOAT32,
    HEADLINE,
    LIMIT,
    PEERS,
    PRECISIONS,
    PRODUCTS_LIMIT,
    STOCK,
    Contender,
)
from benchmarks.peers.workloads import Workload

Participants = Mapping[str, tuple[str, ...]]
"""The precisions of each peer that takes part."""

_WIDE, _BOTH = (FLOAT32,), (FLOAT32, BFLOAT16)
_ZOO: Participants = {
    HEADLINE: PRECISIONS,
    STOCK: _BOTH,
    "keras-tensorflow": _BOTH,
    "keras-torch": _BOTH,
    PRODUCTS_LIMIT: _BOTH,
}


@dataclass(frozen=True)
class Suite:
    """A list of workloads with its own page.

    Attributes:
        name: ends the names of its files.
        workloads: its workloads by name.
        participants: the peers in each kind of workload.
        precisions: the precisions by default.
        rounds: turns of each peer by default.
        seconds: seconds of a turn by default.
        prepared_at_once: processes that start, compile and warm up at the same time; 1 if the time
            of that is a result.
        keeps_programs: whether compiled programs are kept for the next run.
        far_behind: slow-down relative to Convoy from which a peer takes one turn only.
        profiled_below: speedup over the best peer below which Convoy is profiled.
    """

    name: str
    workloads: Mapping[str, Workload]
    participants: Mapping[str, Participants]
    precisions: tuple[str, ...]
    rounds: int
    seconds: float
    prepared_at_once: int
    keeps_programs: bool
    far_behind: float = math.inf
    profiled_below: float = 0.0

    def peers(self) -> list[str]:
        """Return the names of all its peers, in the order of the page."""
        return [name for name in PEERS if any(name in row for row in self.participants.values())]

    def contenders(
        self,
        kind: str,
        peers: Collection[str] | None = None,
        precisions: Sequence[str] = PRECISIONS,
    ) -> list[Contender]:
        """Return the contenders of a kind of workload.

        Args:
            kind: kind of workload.
            peers: names of the peers; all of them by default. Convoy always takes part.
            precisions: the precisions.
        """
        participants = self.participants[kind]
        chosen = {HEADLINE, *(participants if peers is None else peers)}
        return [
            Contender(peer, precision)
            for name, peer in PEERS.items()
            if name in participants and name in chosen
            for precision in precisions
            if precision in participants[name]
        ]


PEERS_SUITE = Suite(
    "peers",
    workloads.WORKLOADS,
    {
        "training": {
            HEADLINE: PRECISIONS,
            CORES: _WIDE,
            STOCK: _WIDE,
            "keras-tensorflow": _BOTH,
            "keras-torch": _WIDE,
            "torch": _BOTH,
            "torch-compiled": _BOTH,
            LIMIT: _BOTH,
        },
        "inference": {
            HEADLINE: PRECISIONS,
            "keras-tensorflow": _BOTH,
            "torch": _BOTH,
            "torch-compiled": _BOTH,
            "onnxruntime": _WIDE,
            "openvino": _BOTH,
        },
    },
    precisions=_BOTH,
    rounds=5,
    seconds=2.5,
    # Compilation is mostly single-threaded, and nothing is timed during it.
    prepared_at_once=2,
    keeps_programs=True,
)
ZOO_SUITE = Suite(
    "zoo",
    zoo.ZOO,
    {"training": _ZOO, "prediction": _ZOO},
    precisions=_WIDE,
    rounds=3,
    seconds=2.0,
    prepared_at_once=1,
    keeps_programs=False,
    far_behind=4.0,
    profiled_below=1.2,
)
SUITES = {suite.name: suite for suite in (PEERS_SUITE, ZOO_SUITE)}
WORKLOADS = {name: work for suite in SUITES.values() for name, work in suite.workloads.items()}
"""The workloads of all suites."""
