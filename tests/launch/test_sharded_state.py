"""Replicas in several processes, each of which stores a shard of the state."""

import keras
import numpy as np
import pytest

from . import worker
from .running import SCRIPT, assert_same_run, in_one_process, launch, outcomes

pytestmark = pytest.mark.slow

TWO = ("--num-instances", 2)


@pytest.mark.parametrize("shard", ["optimizer", "weights"])
def test_two_processes_train_as_one_does_and_callbacks_read_all_weights(tmp_path, shard):
    ended = launch(*TWO, SCRIPT, tmp_path, "--shard", shard)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second = outcomes(tmp_path, 2)
    assert first == second
    assert_same_run(first, in_one_process(2))
    assert len(first["read"]) == 3 * worker.SAMPLES // 8 // worker.STEPS
    # The first process has written a file with all weights and all of the optimizer's state.
    saved = keras.models.load_model(tmp_path / "saved.keras")
    for weight, expected in zip(saved.get_weights(), first["weights"], strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-6)
    assert any(np.abs(np.asarray(v.value)).max() > 0 for v in saved.optimizer.variables[2:])


def test_a_run_with_sharded_weights_that_is_killed_ends_with_the_same_bits(tmp_path):
    folder = tmp_path / "checkpoints"
    words = [SCRIPT, tmp_path, "--checkpoints", folder, "--shard", "weights"]
    first = launch(*TWO, *words, "--die", "1:4:SIGKILL")
    assert first.returncode != 0
    assert launch(*TWO, *words).returncode == 0
    resumed = outcomes(tmp_path, 2)[0]
    whole = tmp_path / "whole"
    whole.mkdir()
    assert launch(*TWO, SCRIPT, whole, "--shard", "weights").returncode == 0
    expected = outcomes(whole, 2)[0]
    assert resumed["weights"] == expected["weights"]  # bit for bit
    assert resumed["history"]["loss"][-1] == expected["history"]["loss"][-1]
