"""L2 and weight decay. Upstream's `test_optimizers`: with a zero gradient, both take 1 to 0.9."""

import keras
import numpy as np
import pytest
from convoy.optimizers import LARS, Regularized
from keras import optimizers

pytestmark = pytest.mark.integration


def steps_of(optimizer, start, gradients, name="kernel"):
    weight = keras.Variable(np.asarray(start, "float32"), name=name)
    for gradient in gradients:
        optimizer.apply([np.asarray(gradient, "float32")], [weight])
    return np.asarray(weight)


@pytest.mark.parametrize("kind", ["l2", "weight_decay"])
def test_draws_a_weight_to_zero_without_a_gradient(kind):
    optimizer = Regularized(optimizers.SGD(1.0), **{kind: 0.1})
    np.testing.assert_allclose(steps_of(optimizer, [1.0], [[0.0]]), [0.9], rtol=1e-6)


def test_both_are_the_same_where_the_optimizer_has_no_state(rng):
    start, gradients = rng.normal(size=4), rng.normal(size=(5, 4))
    both = [
        steps_of(Regularized(optimizers.SGD(0.1), **{kind: 0.1}), start, gradients)
        for kind in ("l2", "weight_decay")
    ]
    np.testing.assert_allclose(*both, rtol=1e-5)


def test_they_differ_with_momentum_as_their_formulas_do(rng):
    start, gradients = rng.normal(size=4), rng.normal(size=(5, 4))
    rate, momentum, factor = 0.1, 0.9, 0.05
    for kind in ("l2", "weight_decay"):
        weight, velocity = start, 0.0
        for gradient in gradients:
            inside = gradient + factor * weight if kind == "l2" else gradient
            velocity = momentum * velocity + inside
            beside = factor * weight if kind == "weight_decay" else 0.0
            weight = weight - rate * (velocity + beside)
        optimizer = Regularized(optimizers.SGD(rate, momentum), **{kind: factor})
        np.testing.assert_allclose(steps_of(optimizer, start, gradients), weight, rtol=1e-5)


@pytest.mark.parametrize("name", ["kernel", "bias", "gamma"])
def test_weight_decay_is_that_of_keras_and_follows_the_schedule(rng, name):
    start, gradients = rng.normal(size=4), rng.normal(size=(6, 4))

    def rate():
        return optimizers.schedules.CosineDecay(0.1, 5, warmup_target=0.2, warmup_steps=2)

    theirs = steps_of(optimizers.Adam(rate(), weight_decay=0.3), start, gradients, name)
    ours = steps_of(Regularized(optimizers.Adam(rate()), weight_decay=0.3), start, gradients, name)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_l2_is_the_gradient_of_a_regulariser_of_half_of_it(rng):
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 2))
    weights = []
    for regularizer, factor in ((keras.regularizers.L2(0.05), 0.0), (None, 0.1)):
        keras.utils.set_random_seed(1)
        layer = keras.layers.Dense(2, use_bias=False, kernel_regularizer=regularizer)
        model = keras.Sequential([keras.Input((3,)), layer])
        model.compile(Regularized(optimizers.Adam(0.01), l2=factor), "mse")
        model.fit(x, y, batch_size=2, epochs=2, verbose=0)
        weights.append(model.get_weights()[0])
    np.testing.assert_allclose(*weights, rtol=1e-5)


def test_weights_can_be_excluded_from_decay():
    optimizer = Regularized(optimizers.SGD(1.0), weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert steps_of(optimizer, [1.0], [[0.0]], "bias") == [1.0]


def test_goes_around_any_optimizer(rng):
    weight = steps_of(Regularized(LARS(0.1, weight_decay=0.1), weight_decay=0.5), [2.0], [[0.0]])
    # LARS sees the weight after the decay, 1.9, and takes 0.1 * 0.1 of that.
    np.testing.assert_allclose(weight, [1.9 - 0.019], rtol=1e-5)


def test_learning_rate_and_iterations_are_those_of_the_optimizer_inside():
    inside = optimizers.SGD(0.5)
    optimizer = Regularized(inside, l2=0.1)
    steps_of(optimizer, [1.0], [[0.0], [0.0]])
    assert int(optimizer.iterations) == 2
    optimizer.learning_rate = 0.25
    assert float(inside.learning_rate) == float(optimizer.learning_rate) == 0.25
    assert [v.path for v in optimizer.variables] == [v.path for v in inside.variables]


def test_can_be_saved_and_loaded(tmp_path, rng):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(Regularized(optimizers.Adam(0.01), l2=0.1, weight_decay=0.2), "mse")
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 2))
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for one in (model, loaded):
        one.fit(x, y, verbose=0)
    np.testing.assert_equal(loaded.get_weights(), model.get_weights())


def test_keras_can_scale_the_loss_around_it(rng):
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 2))
    weights = []
    for wrap in (lambda inside: inside, optimizers.LossScaleOptimizer):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(wrap(Regularized(optimizers.SGD(0.1, 0.9), l2=0.1, weight_decay=0.1)), "mse")
        model.fit(x, y, batch_size=2, epochs=2, verbose=0)
        weights.append(model.get_weights()[0])
    np.testing.assert_allclose(*weights, rtol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "settings", "why"),
    [
        (lambda: optimizers.SGD(), {"l2": -1}, r"l2=-1\): pass 0 or more"),
        (lambda: optimizers.LossScaleOptimizer(optimizers.SGD()), {}, "Put Regularized inside"),
        (lambda: optimizers.SGD(loss_scale_factor=2.0), {"l2": 1.0}, "pass loss_scale to convoy"),
        (
            lambda: optimizers.SGD(gradient_accumulation_steps=2),
            {"weight_decay": 0.1},
            "Pass weight_decay to the optimizer itself",
        ),
    ],
)
def test_what_it_cannot_go_around_is_refused(optimizer, settings, why):
    with pytest.raises(ValueError, match=why):
        Regularized(optimizer(), **settings)


def clipped_gradient(weight, gradient, **settings):
    """Return what a gradient becomes, at a learning rate of 1."""
    optimizer = Regularized(optimizers.SGD(1.0), **settings)
    return np.asarray(weight) - steps_of(optimizer, weight, [gradient])


def test_adaptive_clipping_limits_each_output_by_the_norm_of_its_weights():
    weight = np.array([[3.0, 0.0], [4.0, 0.0]])  # two outputs, of norm 5 and 0
    gradient = np.array([[0.6, 0.3], [0.8, 0.4]])  # of norm 1 and 0.5
    actual = clipped_gradient(weight, gradient, clip=0.1)
    # 0.1 x 5, and 0.1 x the smallest norm that counts.
    np.testing.assert_allclose(np.linalg.norm(actual, axis=0), [0.5, 1e-4], rtol=1e-3)
    np.testing.assert_allclose(actual[:, 0], [0.3, 0.4], rtol=1e-5)
    np.testing.assert_allclose(clipped_gradient(weight, gradient, clip=1000), gradient, rtol=1e-5)


def test_adaptive_clipping_takes_a_bias_as_one_and_a_kernel_by_output(rng):
    bias, kernel = rng.normal(size=6), rng.normal(size=(3, 3, 2, 4))
    of_bias = clipped_gradient(bias, 10 * bias, clip=0.5)
    np.testing.assert_allclose(np.linalg.norm(of_bias), 0.5 * np.linalg.norm(bias), rtol=1e-4)
    of_kernel = clipped_gradient(kernel, 10 * rng.normal(size=kernel.shape), clip=0.5)
    norms = np.linalg.norm(of_kernel.reshape(-1, 4), axis=0)
    np.testing.assert_allclose(
        norms, 0.5 * np.linalg.norm(kernel.reshape(-1, 4), axis=0), rtol=1e-4
    )


def test_adaptive_clipping_is_kept_in_the_configuration():
    copy = Regularized.from_config(Regularized(optimizers.SGD(1.0), clip=0.25).get_config())
    assert copy.clip == 0.25
    with pytest.raises(ValueError, match=r"Regularized\(clip=-1\): pass 0 or more"):
        Regularized(optimizers.SGD(1.0), clip=-1)
