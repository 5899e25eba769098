import os

import pytest
from convoy.launch import agent

pytestmark = pytest.mark.integration


def test_cores_are_divided_over_the_processes_of_a_host():
    cores = sorted(os.sched_getaffinity(0))
    shares = [agent.assigned_cores(n, len(cores), numa_aware=False) for n in range(len(cores))]
    assert shares == ([[core] for core in cores] if len(cores) > 1 else [[]])
    assert agent.assigned_cores(0, 1, numa_aware=False) == []
    assert agent.assigned_cores(1, 2 * len(cores), numa_aware=False) == []


def test_processes_alternate_over_numa_nodes(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(agent, "numa_nodes", lambda: [[0, 1, 2, 3], [4, 5, 6, 7]])
    shares = [agent.assigned_cores(n, 4, numa_aware=True) for n in range(4)]
    assert shares == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert [agent.assigned_cores(n, 2, numa_aware=True) for n in range(2)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
