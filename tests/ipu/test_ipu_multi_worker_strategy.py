import pytest
from convoy.ipu import ipu_multi_worker_strategy as module


@pytest.mark.parametrize("kind", [module.IPUMultiWorkerStrategy, module.IPUMultiWorkerStrategyV1])
def test_the_error_names_the_strategy_to_use_instead(kind):
    with pytest.raises(NotImplementedError, match=r"PopDistStrategy instead"):
        kind("resolver", ipu_device="/device:IPU:0")
