"""What is prepared from weights is made anew whenever they change, and only then."""

import gc
from collections import Counter

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy import cpu
from convoy.cpu import lowering
from convoy.engine.step import constant_folding
from tests import parts

layers = keras.layers

pytestmark = [parts.needs("the native CPU kernels"), pytest.mark.integration]

RTOL = 1e-5
ATOL = 1e-6

X = np.random.default_rng(0).normal(size=(20, 8, 8, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(20, 4)).astype("float32")


def make(**options):
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    y = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.Dropout(0.3)(layers.ReLU()(layers.Add()([x, y])))
    x = layers.Dense(4)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, x)
    model.compile("sgd", "mse", metrics=["mae"], **options)
    return model


def on_engine(devices=1):
    keras.utils.set_random_seed(5)
    return convoy.prepare(make(steps_per_execution=3), convoy.Strategy(devices=devices))


def stock(model):
    """A stock model with the same weights."""
    twin = make()
    twin.set_weights(model.get_weights())
    return twin


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=RTOL, atol=ATOL)


@pytest.fixture
def preparations(monkeypatch):
    """Count how often values are prepared."""
    made = []
    own = constant_folding.FoldedStep.fold
    monkeypatch.setattr(
        constant_folding.FoldedStep,
        "fold",
        lambda self, constants: made.append(1) or own(self, constants),
    )
    return made


def assign(model):
    model.layers[1].kernel.assign(model.layers[1].kernel.value * 2)


def set_statistics(model):
    variance = model.layers[2].moving_variance
    variance.assign(variance.value + 1)


def set_weights(model):
    model.set_weights([weight + 0.5 for weight in model.get_weights()])


def fit(model):
    model.fit(X, Y, batch_size=5, verbose=0)


def train_on_batch(model):
    model.train_on_batch(X, Y)


CHANGES = [assign, set_statistics, set_weights, fit, train_on_batch]


@pytest.mark.parametrize("change", CHANGES)
def test_new_weights_give_new_results(change):
    model = on_engine()
    before = model.predict(X, batch_size=4, verbose=0)
    change(model)
    after = model.predict(X, batch_size=4, verbose=0)
    assert np.abs(after - before).max() > 1e-3
    close(after, stock(model).predict(X, batch_size=4, verbose=0))


def test_loaded_weights_give_their_results(tmp_path):
    model = on_engine()
    expected = model.predict(X, verbose=0)
    model.save_weights(tmp_path / "x.weights.h5")
    set_weights(model)
    model.predict(X, verbose=0)
    model.load_weights(tmp_path / "x.weights.h5")
    np.testing.assert_array_equal(model.predict(X, verbose=0), expected)


@pytest.mark.parametrize("devices", [1, 2])
def test_weights_that_stay_are_prepared_once(preparations, devices):
    model = on_engine(devices)
    for _ in range(4):
        model.predict_on_batch(X)
    assert len(preparations) == 1
    assign(model)
    model.predict_on_batch(X)
    model.predict_on_batch(X)
    assert len(preparations) == 2


def test_variables_keep_their_arrays():
    model = on_engine()
    before = [variable.value for variable in model.variables]
    model.predict(X, verbose=0)
    model.evaluate(X, Y, verbose=0)
    kept = [a is v.value for a, v in zip(before, model.variables, strict=True)]
    seeds = [v.path.startswith("seed_generator") for v in model.variables]
    assert all(same or seed for same, seed in zip(kept, seeds, strict=True))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("batch", [1, 3, 4, 20, 32])
def test_predict_and_evaluate_are_those_of_stock_keras(devices, batch):
    model = on_engine(devices)
    fit(model)
    twin = stock(model)
    expected = twin.predict(X, verbose=0), twin.evaluate(X, Y, verbose=0)
    lowering.reset_counts()
    close(model.predict(X, batch_size=batch, verbose=0), expected[0])
    close(model.evaluate(X, Y, batch_size=batch, verbose=0), expected[1])
    counts = Counter()
    for name, count in lowering.counts().items():
        counts[name.partition(", ")[2]] += count
    assert counts["inference, rectifier"] >= 2
    assert counts["inference, addition, rectifier"] >= 2
    assert "forward" not in counts


def test_validation_between_epochs_sees_the_weights_of_its_epoch():
    model = on_engine()
    twin = stock(model)
    keras.utils.set_random_seed(1)
    got = model.fit(X, Y, batch_size=4, epochs=3, validation_data=(X, Y), verbose=0)
    weights = model.get_weights()
    twin.set_weights(weights)
    close(got.history["val_loss"][-1], twin.evaluate(X, Y, verbose=0)[0])


def test_images_of_another_size():
    inputs = keras.Input((None, None, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3)(inputs)))
    model = keras.Model(inputs, layers.GlobalMaxPooling2D()(x))
    images = [X, X[:, :6], np.concatenate([X, X], axis=1)]
    expected = [model(image, training=False) for image in images]
    convoy.prepare(model, convoy.Strategy(devices=1))
    for image, wanted in zip(images, expected, strict=True):
        close(model.predict_on_batch(image), wanted)


def test_disabled_kernels_are_not_used():
    model = on_engine()
    expected = model.predict_on_batch(X)
    cpu.disable()
    try:
        lowering.reset_counts()
        close(model.predict_on_batch(X), expected)
        assert not lowering.counts()
    finally:
        cpu.enable()
    close(model.predict_on_batch(X), expected)


def test_training_releases_what_was_prepared():
    model = on_engine()
    model.predict_on_batch(X)
    prepared = model.set_gradient_accumulation.__self__.host_loop.runners._weights
    assert len(prepared.kept) == 1
    train_on_batch(model)
    assert len(prepared.kept) == 0


def test_memory_does_not_grow_with_changes_of_weights():
    model = on_engine()

    def run(times):
        for turn in range(times):
            assign(model)
            model.predict_on_batch(X[: 1 + turn % 8])
        gc.collect()
        return sum(array.nbytes for array in jax.live_arrays())

    assert run(40) <= run(16)


def test_at_most_a_few_programs_keep_values():
    model = on_engine()
    for batch in range(1, 8):
        model.predict_on_batch(X[:batch])
    prepared = model.set_gradient_accumulation.__self__.host_loop.runners._weights
    assert len(prepared.kept) == constant_folding.KEPT_PROGRAMS


def test_a_layer_with_effects_is_left_whole(capfd):
    class Says(layers.Layer):
        def call(self, x):
            jax.debug.print("seen")
            return x

    inputs = keras.Input((8, 8, 3))
    model = keras.Model(inputs, Says()(layers.Conv2D(4, 3)(inputs)))
    convoy.prepare(model, convoy.Strategy(devices=1))
    lowering.reset_counts()
    model.predict_on_batch(X)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("seen") == 1
    assert not any("inference" in name for name in lowering.counts())


def test_layers_that_draw_random_numbers_draw_new_ones():
    class Noise(layers.Layer):
        def __init__(self):
            super().__init__()
            self.generator = keras.random.SeedGenerator(3)

        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x), seed=self.generator)

    def make_noisy():
        inputs = keras.Input((8, 8, 3))
        return keras.Model(inputs, Noise()(layers.Conv2D(4, 3)(inputs)))

    model = make_noisy()
    twin = make_noisy()
    twin.set_weights(model.get_weights())
    convoy.prepare(model, convoy.Strategy(devices=1))
    first, second = model.predict_on_batch(X), model.predict_on_batch(X)
    assert np.abs(first - second).max() > 0.1
    close(first, twin.predict_on_batch(X))
    close(second, twin.predict_on_batch(X))


def test_a_weight_that_is_an_output():
    class Returns(layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(20, 4))

        def call(self, x):
            return keras.ops.convert_to_tensor(self.table)

    inputs = keras.Input((8, 8, 3))
    model = keras.Model(inputs, Returns()(inputs))
    convoy.prepare(model, convoy.Strategy(devices=1))
    for _ in range(2):
        np.testing.assert_array_equal(model.predict_on_batch(X), model.weights[0])
