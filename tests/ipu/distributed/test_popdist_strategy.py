import pytest
from convoy import ipu

PopDistStrategy = ipu.distributed.popdist_strategy.PopDistStrategy


def test_replicas_do_not_drift_apart():
    with pytest.raises(NotImplementedError, match="would let weights differ"):
        PopDistStrategy(add_ipu_cross_replica_reductions=False)


def test_names_its_place_in_a_configuration():
    config = ipu.config.IPUConfig()
    PopDistStrategy().update_ipu_config(config)
    assert config.experimental.multi_replica_distribution.process_count == 1
