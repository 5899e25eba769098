"""What is found in a model while it is traced, and that it changes nothing but the kernels."""

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy import cpu, keras_bridge
from convoy.cpu.training_fusion import relu

pytestmark = [pytest.mark.usefixtures("native"), pytest.mark.integration]

layers = keras.layers


def compiled(model, x):
    """Return the compiled text of a model's training pass."""

    def forward(trainable, non_trainable, x):
        with keras_bridge.replaced_operations(cpu.Fusion()):
            y, _ = model.stateless_call(trainable, non_trainable, x, training=True)
        return y.sum()

    parts = (model.trainable_variables, model.non_trainable_variables)
    state = [[v.value for v in part] for part in parts]
    return jax.jit(forward).lower(*state, x).compile().as_text()


def calls(model, x):
    """Return how often each kernel of normalisation is called in a model's training pass."""
    text = compiled(model, x)
    names = ("convoy_moments", "convoy_affine")
    return {name: text.count(f'custom_call_target="{name}"') for name in names} | {
        "maximum": text.count(" maximum(")
    }


def block(*, add=False, activation="relu", **options):
    inputs = keras.Input((6, 6, 4))
    x = layers.BatchNormalization(**options)(layers.Conv2D(4, 1)(inputs))
    if add:
        x = layers.Add()([inputs, x])
    return keras.Model(inputs, layers.Activation(activation)(x))


X = np.random.default_rng(0).normal(size=(2, 6, 6, 4)).astype("float32")


def test_normalisation_and_rectifier_are_one():
    assert calls(block(), X) == {"convoy_moments": 1, "convoy_affine": 1, "maximum": 0}


def test_normalisation_addition_and_rectifier_are_one():
    assert calls(block(add=True), X) == {"convoy_moments": 1, "convoy_affine": 1, "maximum": 0}


def test_another_activation_follows_the_kernel():
    found = calls(block(activation="tanh"), X)
    assert (found["convoy_moments"], found["convoy_affine"]) == (1, 1)


@pytest.mark.parametrize("options", [{"axis": 1}, {"axis": 2}])
def test_other_normalisations_are_left_to_xla(options):
    assert calls(block(**options), X)["convoy_affine"] == 0


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("options", [{"add": True}, {"activation": "tanh"}])
def test_casts_to_single_precision_and_back_are_part_of_it(policy, options):
    keras.config.set_dtype_policy(policy)
    try:
        model = block(**options)
    finally:
        keras.config.set_dtype_policy("float32")
    targets = ('custom_call_target="convoy_moments"', 'custom_call_target="convoy_affine"')
    lines = compiled(model, X).splitlines()
    normalisation = [line for line in lines if any(target in line for target in targets)]
    stored = {"mixed_bfloat16": "bf16", "mixed_float16": "f16"}[policy]
    assert len(normalisation) == 2
    for line in normalisation:
        assert f"{stored}[72,4]" in line, line
        assert "f32[72,4]" not in line, line


def test_keras_has_its_own_operations_back_afterwards():
    from keras.src.backend.jax import nn, numpy

    before = (nn.moments, nn.batch_normalization, nn.relu, numpy.add)
    with pytest.raises(ZeroDivisionError), keras_bridge.replaced_operations(cpu.Fusion()):
        _ = 1 / 0
    assert (nn.moments, nn.batch_normalization, nn.relu, numpy.add) == before


@pytest.mark.parametrize("devices", [1, 2])
def test_training_is_the_same_with_and_without(devices):
    def train():
        keras.utils.set_random_seed(3)
        with convoy.Strategy(devices=devices).scope():
            inputs = keras.Input((6, 6, 4))
            x = inputs
            for filters in (4, 4):
                y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
                y = layers.BatchNormalization()(y)
                y = layers.ReLU()(y)
                y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(y)
                y = layers.BatchNormalization()(y)
                x = layers.ReLU()(layers.Add()([y, x]))
            x = layers.Dense(3)(layers.GlobalAveragePooling2D()(x))
            model = keras.Model(inputs, x)
            model.compile("sgd", "mse", steps_per_execution=4)
        rng = np.random.default_rng(1)
        x, y = rng.normal(size=(32, 6, 6, 4)), rng.normal(size=(32, 3))
        history = model.fit(x, y, batch_size=4, epochs=2, verbose=0)
        return history.history["loss"], model.get_weights()

    with_kernels = train()
    cpu.disable()
    try:
        without = train()
    finally:
        cpu.enable()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), with_kernels, without
    )


def test_statistics_of_several_replicas_are_those_of_one_batch_with_and_without_kernels():
    """Also the gradient goes through the statistics of all replicas."""

    def train(devices, kernels):
        keras.utils.set_random_seed(3)
        group = {"devices": devices, "batch_norm_group": devices}
        if not kernels:
            cpu.disable()
        try:
            with convoy.Strategy(**group).scope():
                model = block(add=True)
                model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=4)
            rng = np.random.default_rng(1)
            x, y = (rng.normal(size=(32, 6, 6, 4)).astype("float32") for _ in range(2))
            model.fit(x, y, batch_size=8 // devices, epochs=2, verbose=0)
            return model.get_weights()
        finally:
            cpu.enable()

    expected = train(1, kernels=True)
    for devices, kernels in ((2, True), (4, True), (2, False)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            train(devices, kernels),
            expected,
        )


def test_a_rectifier_has_the_gradient_of_jax():
    x = np.array([-np.inf, -1, -0.0, 0.0, 1.2e-38, 2, np.inf, np.nan], np.float32)
    expected, pull = jax.vjp(jax.nn.relu, x)
    found, pull_found = jax.vjp(relu, x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(pull_found(x), pull(x))


def test_what_a_rectifier_was_given_is_not_kept():
    x = np.random.default_rng(0).normal(size=(8, 16)).astype("float32")
    weights = np.ones((16, 4), np.float32)
    _, pull = jax.vjp(lambda x, weights: relu(x + 1) @ weights, x, weights)
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.shape == x.shape]
    assert any(np.array_equal(value, np.maximum(x + 1, 0)) for value in kept)
    assert all((np.asarray(value) >= 0).all() for value in kept)
