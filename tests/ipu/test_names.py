import pytest
from convoy import ipu


def test_old_names_lead_to_the_same_things():
    assert ipu.utils.IPUConfig is ipu.config.IPUConfig
    assert ipu.cross_replica_ops is ipu.ops.cross_replica_ops
    assert ipu.ipu_strategy.IPUStrategyV1 is ipu.ipu_strategy.IPUStrategy


def test_strategies_that_are_gone_say_so():
    with pytest.raises(NotImplementedError, match="PopDistStrategy"):
        ipu.ipu_multi_worker_strategy.IPUMultiWorkerStrategy(None)
