from types import SimpleNamespace

import pytest
from convoy.compile.analysis import ObservedRun
from convoy.compile.failures import Shortage, advise, find_shortage

GB = 10**9


def run_of(method="fit", batch=256, replicas=2, **config):
    defaults = {
        "replicas": replicas,
        "gradient_accumulation": 2,
        "pipeline": None,
        "activation_checkpointing": None,
        "shard": None,
    }
    run = ObservedRun(method, None, SimpleNamespace(**defaults | config))
    run.batch = batch
    return run


def test_activations_that_are_too_large_need_a_smaller_micro_batch():
    first, second, third = advise(31 * GB, 16 * GB, 1 * GB, run_of())
    # 128 samples take 30 GB, and there is room for 13.4 GB.
    assert first.startswith("a micro-batch of 32 instead of 128 (--micro-batch-size 32,")
    assert "accumulation over 8 micro-batches" in first
    assert "activation_checkpointing" in second
    assert "at least 3 pipeline stages (--pipeline-splits auto 3" in third


def test_a_state_that_is_too_large_needs_shards_or_stages():
    advice = advise(40 * GB, 16 * GB, 30 * GB, run_of(replicas=8))
    assert 'Strategy(shard="weights")' in advice[0]
    assert "at least 3 pipeline stages" in advice[1]


def test_shards_are_not_advised_if_they_would_not_fit():
    # Half of the state still takes 15 GB.
    (advice,) = advise(40 * GB, 16 * GB, 30 * GB, run_of(replicas=2))
    assert "pipeline stages" in advice


@pytest.mark.parametrize("batch", [2, 0])
def test_a_micro_batch_of_one_cannot_be_smaller(batch):
    advice = advise(20 * GB, 16 * GB, 1 * GB, run_of(batch=batch))
    assert not any("micro-batch of" in line for line in advice)


def test_inference_has_no_stages_to_add():
    advice = advise(31 * GB, 16 * GB, 1 * GB, run_of("predict"))
    assert len(advice) == 1
    assert "micro-batch of 32" in advice[0]


def test_the_memory_that_is_missing_is_read_from_the_message_of_xla():
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 20.25G of 15.75G hbm. Exceeded hbm capacity by 4.50G."
    )
    available = round(15.75 * 2**30)
    assert find_shortage(RuntimeError(message), GB) == Shortage(round(20.25 * 2**30), available)
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (26.67G) exceeds available HBM (15.75G)."
    )
    needed = round(26.67 * 2**30) + GB
    assert find_shortage(RuntimeError(message), GB) == Shortage(needed, available)
    assert find_shortage(RuntimeError("INTERNAL: something else"), GB) is None
