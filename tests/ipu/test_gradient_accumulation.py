import pytest
from convoy import ipu
from convoy.estimator.spec import Accumulation as EngineAccumulation
from convoy.ipu.gradient_accumulation import Accumulation, check_offload, read_dtype

Method = ipu.gradient_accumulation.GradientAccumulationReductionMethod


@pytest.mark.parametrize(
    ("method", "reduction"),
    [(Method.SUM, "sum"), (Method.MEAN, "mean"), (Method.RUNNING_MEAN, "mean")],
)
def test_a_running_mean_is_a_mean_to_the_engine(method, reduction):
    found = Accumulation(4, method, "float32").native()
    assert found == EngineAccumulation(4, reduction, "float32")


def test_sharded_optimizer_state_is_offloaded():
    check_offload({"replicated_optimizer_state_sharding": True})
    with pytest.raises(ValueError, match="which is False"):
        check_offload(
            {
                "replicated_optimizer_state_sharding": True,
                "offload_weight_update_variables": False,
            }
        )


def test_gradients_are_accumulated_in_one_dtype():
    assert read_dtype("dtype", None) is None
    assert read_dtype("dtype", "bfloat16") == "bfloat16"
    with pytest.raises(ValueError, match="dtype='half' is not a dtype"):
        read_dtype("dtype", "half")
    with pytest.raises(NotImplementedError, match="dtype is a function"):
        read_dtype("dtype", lambda variable: "float32")
