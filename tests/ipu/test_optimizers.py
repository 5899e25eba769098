import convoy
import pytest
from convoy import ipu
from convoy.ipu.gradient_accumulation import Accumulation
from convoy.ipu.optimizers import GradientOptions, gradient_options

own, keras_own = ipu.optimizers, ipu.keras.optimizers
Method = ipu.gradient_accumulation.GradientAccumulationReductionMethod


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("sgd", GradientOptions("sgd")),
        (own.CrossReplicaOptimizer("sgd"), GradientOptions("sgd", "mean")),
        (own.ShardedOptimizer("sgd"), GradientOptions("sgd")),
        (
            own.GradientAccumulationOptimizerV2("sgd", 4, dtype="float32"),
            GradientOptions("sgd", None, Accumulation(4, Method.SUM, "float32")),
        ),
        (
            own.GradientAccumulationOptimizer(own.CrossReplicaOptimizer("sgd"), 2),
            GradientOptions("sgd", "mean", Accumulation(2, Method.SUM)),
        ),
        (
            own.CrossReplicaGradientAccumulationOptimizer("sgd", 2),
            GradientOptions("sgd", "mean", Accumulation(2, Method.SUM)),
        ),
        (
            keras_own.GradientAccumulationOptimizer("sgd", 2, reduction_method=Method.MEAN),
            GradientOptions("sgd", None, Accumulation(2, Method.MEAN)),
        ),
        (
            keras_own.ALSGradientAccumulationOptimizer(keras_own.ALSOptimizer("sgd"), 2),
            GradientOptions(
                "sgd",
                None,
                Accumulation(2, Method.SUM),
                convoy.AutomaticLossScale(period=8, edge=2**13),
            ),
        ),
    ],
)
def test_options_of_wrapped_optimizers_are_combined(optimizer, expected):
    assert gradient_options(optimizer) == expected


def test_refuses_numbers_that_have_no_meaning():
    with pytest.raises(ValueError, match="num_mini_batches=0"):
        own.GradientAccumulationOptimizerV2("sgd", 0)
    with pytest.raises(ValueError, match="which is False"):
        own.GradientAccumulationOptimizerV2("sgd", 2, False, replicated_optimizer_state_sharding=1)
