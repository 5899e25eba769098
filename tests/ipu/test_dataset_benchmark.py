import json

import numpy as np
import pytest
from convoy import ipu
from convoy.ipu.dataset_benchmark import dataset_benchmark, infeed_benchmark

ELEMENT = {"x": np.zeros((2, 3), "float32"), "y": np.zeros(2, "int32")}


def test_counts_elements_and_bytes(capsys):
    found = json.loads(dataset_benchmark([ELEMENT] * 6, 2, 3))["epochs"]
    assert [(e["elements_processed"], e["total_bytes_processed"]) for e in found] == [(3, 96)] * 2
    for epoch in found:
        assert epoch["elements_per_second"] == pytest.approx(3 / epoch["time_elapsed"])
        assert epoch["bandwidth"] == pytest.approx(96 / epoch["time_elapsed"] / 1e9)
    assert capsys.readouterr().out.count("3 elements in") == 2


def test_a_queue_is_gone_through_the_same_way(capsys):
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue([ELEMENT] * 4)
    found = json.loads(infeed_benchmark(queue, 2, 2, print_stats=False))["epochs"]
    assert [epoch["total_bytes_processed"] for epoch in found] == [64, 64]
    assert not capsys.readouterr().out


def test_refuses_counts_that_are_none_and_data_that_ends():
    with pytest.raises(ValueError, match="number_of_epochs=0"):
        dataset_benchmark([ELEMENT], 0, 1)
    with pytest.raises(ValueError, match="elements_per_epochs=0"):
        dataset_benchmark([ELEMENT], 1, 0)
    with pytest.raises(RuntimeError, match="ended after 1 of the 2 elements of epoch 1"):
        dataset_benchmark([ELEMENT], 1, 2)
