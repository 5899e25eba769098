import pytest
from convoy import ipu

optimizers = ipu.keras.optimizers


def test_one_micro_batch_needs_no_accumulation():
    assert optimizers.GradientAccumulationOptimizer("sgd", 1) == "sgd"


def test_losses_are_scaled_as_upstream_does_by_default():
    scale = optimizers.ALSOptimizer("sgd").loss_scale
    assert (scale.initial, scale.period, scale.step, scale.limit) == (1, 8, 2, 32768)
    assert (scale.threshold, scale.edge) == (1e-5, 2**13)


def test_factors_rise_and_fall_alike():
    assert optimizers.ALSOptimizer("sgd", increase_factor=4).decrease_factor == 0.25


def test_refuses_numbers_that_have_no_meaning():
    for name in ("initial_loss_scaling_factor", "increase_factor", "max_loss_scaling_factor"):
        with pytest.raises(ValueError, match=f"{name}=3 is not a power of two"):
            optimizers.ALSOptimizer("sgd", **{name: 3})
    with pytest.raises(ValueError, match="allows no increase"):
        optimizers.ALSOptimizer("sgd", 16384)
    with pytest.raises(ValueError, match=r"ratio_threshold=2 is not between 0 and 1\. Pass"):
        optimizers.ALSOptimizer("sgd", ratio_threshold=2)
    with pytest.raises(ValueError, match=r"update_frequency=0 is not a number of weight updates"):
        optimizers.ALSOptimizer("sgd", update_frequency=0)
    with pytest.raises(NotImplementedError, match="lpf_alpha"):
        optimizers.ALSOptimizer("sgd", lpf_alpha=0.5)
    with pytest.raises(ValueError, match="is not an ALSOptimizer"):
        optimizers.ALSGradientAccumulationOptimizer("sgd", 2)


def test_statistics_are_the_initial_ones_until_a_model_is_compiled():
    optimizer = optimizers.ALSOptimizer("sgd", initial_loss_scaling_factor=4)
    optimizer.reset()
    assert optimizer.loss_scaling_factor == optimizer.previous_loss_scaling_factor == 4
    assert optimizer.update_counter == 0
    assert optimizer.histogram.tolist() == optimizer.normalized_histogram.tolist() == [0, 0]
