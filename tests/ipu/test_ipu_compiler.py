import numpy as np
import pytest
from convoy import ipu


def test_compiles_functions():
    assert ipu.ipu_compiler.compile(lambda: None) is None
    assert ipu.ipu_compiler.compile(lambda x: x + 1, [np.float32(1)]) == (2,)
    assert ipu.ipu_compiler.compile(lambda x: {"y": x}, [np.float32(1)]) == {"y": 1}


def test_a_program_runs_on_the_device_of_its_scope(configure):
    configure([1, 2])

    def count():
        return ipu.cross_replica_ops.cross_replica_sum(np.float32(1))

    assert ipu.ipu_compiler.compile(count) == (1,)
    with ipu.scopes.ipu_scope("/device:IPU:1"):
        assert ipu.ipu_compiler.compile(count) == (2,)


def test_refuses_the_spec_of_an_estimator():
    spec = ipu.ipu_estimator.IPUEstimatorSpec("infer", predictions=1)
    with pytest.raises(ValueError, match="returns IPUEstimatorSpec"):
        ipu.ipu_compiler.compile(lambda: spec)
