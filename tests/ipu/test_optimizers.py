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


def test_one_micro_batch_needs_no_accumulation():
    assert keras_own.GradientAccumulationOptimizer("sgd", 1) == "sgd"


def test_refuses_numbers_that_have_no_meaning():
    with pytest.raises(ValueError, match="num_mini_batches=0"):
        own.GradientAccumulationOptimizerV2("sgd", 0)
    with pytest.raises(ValueError, match="which is False"):
        own.GradientAccumulationOptimizerV2("sgd", 2, False, replicated_optimizer_state_sharding=1)
    for name in ("initial_loss_scaling_factor", "increase_factor", "max_loss_scaling_factor"):
        with pytest.raises(ValueError, match=f"{name}=3 is not a power of two"):
            keras_own.ALSOptimizer("sgd", **{name: 3})
    with pytest.raises(ValueError, match="leaves no room"):
        keras_own.ALSOptimizer("sgd", 16384)
    with pytest.raises(ValueError, match=r"ratio_threshold=2 is not between 0 and 1"):
        keras_own.ALSOptimizer("sgd", ratio_threshold=2)
    with pytest.raises(ValueError, match=r"update_frequency=0 is not a number of weight updates"):
        keras_own.ALSOptimizer("sgd", update_frequency=0)
    with pytest.raises(NotImplementedError, match="lpf_alpha"):
        keras_own.ALSOptimizer("sgd", lpf_alpha=0.5)
    with pytest.raises(ValueError, match="is not an ALSOptimizer"):
        keras_own.ALSGradientAccumulationOptimizer("sgd", 2)


def test_losses_are_scaled_as_upstream_does_by_default():
    scale = keras_own.ALSOptimizer("sgd").loss_scale
    assert (scale.initial, scale.period, scale.step, scale.limit) == (1, 8, 2, 32768)
    assert (scale.threshold, scale.edge) == (1e-5, 2**13)


def test_factors_rise_and_fall_alike():
    assert keras_own.ALSOptimizer("sgd", increase_factor=4).decrease_factor == 0.25
