import os
import threading
import tracemalloc

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


def forwarded(*pieces):
    """Return the output that is forwarded, and the most memory that this takes at a time."""
    source, target = os.pipe()
    sent, most = [], []

    def write():
        for piece in pieces:
            os.write(target, piece)
        os.close(target)

    writing = threading.Thread(target=write)
    tracemalloc.start()
    try:
        writing.start()
        agent.forward_output(source, lambda kind, text: sent.append(text))
        most.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
        writing.join()
        os.close(source)
    return sent, most[0]


def test_lines_are_forwarded():
    assert forwarded(b"one\ntwo\r", b"\nthr", b"ee\n\nfo\xffur")[0] == [
        *("one", "two", "three", "", "fo\ufffdur"),
    ]
    assert forwarded(b"10%\r", b"20%\r3", b"0%\n")[0] == ["30%"]
    assert forwarded(b"10%\r20%\r", b"\nnext\r\r\n")[0] == ["20%", ""]


def test_a_progress_bar_that_never_ends_its_line_takes_little_memory():
    sent, most = forwarded(*100_000 * [b"50% of the epoch, and 3 minutes to go\r"], b"100%")
    assert sent == ["100%"]
    assert most < 1_000_000


@pytest.mark.parametrize("character", [".", "\u00e9", "\u20ac", "\U0001f600"])
def test_a_long_line_is_forwarded_in_pieces(character):
    text = "ab" + 300_000 * character
    data = text.encode()
    sent, most = forwarded(*(data[k : k + 999] for k in range(0, len(data), 999)), b"\nend\n")
    assert sent[-1] == "end"
    assert "".join(sent[:-1]) == text
    assert max(len(piece.encode()) for piece in sent) < 2 * agent.MAX_LINE_BYTES
    assert most < 3 * len(data) + 1_000_000
