"""Augmentation layers inside of a model run in the device loop, with the draws of stock Keras."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers
from keras.src.layers.preprocessing.image_preprocessing.base_image_preprocessing_layer import (
    BaseImagePreprocessingLayer,
)
from tests import parts

from .side_by_side import Recorder, assert_equivalent, make_convoy, make_stock

LAYERS = {
    "AutoContrast": lambda: layers.AutoContrast(value_range=(0, 1)),
    "CenterCrop": lambda: layers.CenterCrop(8, 8),
    "CutMix": lambda: layers.CutMix(seed=1),
    "MixUp": lambda: layers.MixUp(seed=1),
    "ContrastLimitedAdaptiveHistogramEqualization": (
        lambda: layers.ContrastLimitedAdaptiveHistogramEqualization((0, 1), tile_grid_size=(2, 2))
    ),
    "Equalization": lambda: layers.Equalization(value_range=(0, 1)),
    "Normalization": lambda: layers.Normalization(mean=0.4, variance=0.3),
    "Pipeline": lambda: layers.Pipeline(
        [layers.RandomFlip(seed=1), layers.RandomRotation(0.1, seed=2)]
    ),
    "RandAugment": lambda: layers.RandAugment(value_range=(0, 1), num_ops=2, seed=1),
    "RandomBrightness": lambda: layers.RandomBrightness(0.2, value_range=(0, 1), seed=1),
    "RandomColorDegeneration": lambda: layers.RandomColorDegeneration(0.5, (0, 1), seed=1),
    "RandomColorJitter": lambda: layers.RandomColorJitter((0, 1), 0.2, 0.2, 0.2, 0.2, seed=1),
    "RandomContrast": lambda: layers.RandomContrast(0.3, value_range=(0, 1), seed=1),
    "RandomCrop": lambda: layers.RandomCrop(8, 8, seed=1),
    "RandomErasing": lambda: layers.RandomErasing(1.0, value_range=(0, 1), seed=1),
    "RandomFlip": lambda: layers.RandomFlip(seed=1),
    "RandomGaussianBlur": lambda: layers.RandomGaussianBlur(value_range=(0, 1), seed=1),
    "RandomGrayscale": lambda: layers.RandomGrayscale(0.5, seed=1),
    "RandomHue": lambda: layers.RandomHue(0.2, value_range=(0, 1), seed=1),
    "RandomInvert": lambda: layers.RandomInvert(value_range=(0, 1), seed=1),
    "RandomPerspective": lambda: layers.RandomPerspective(seed=1),
    "RandomPosterization": lambda: layers.RandomPosterization(4, value_range=(0, 1), seed=1),
    "RandomRotation": lambda: layers.RandomRotation(0.2, seed=1),
    "RandomSaturation": lambda: layers.RandomSaturation(0.2, value_range=(0, 1), seed=1),
    "RandomSharpness": lambda: layers.RandomSharpness(0.3, value_range=(0, 1), seed=1),
    "RandomShear": lambda: layers.RandomShear(0.2, 0.2, seed=1),
    "RandomTranslation": lambda: layers.RandomTranslation(0.2, 0.2, seed=1),
    "RandomZoom": lambda: layers.RandomZoom(0.2, seed=1),
    "Rescaling": lambda: layers.Rescaling(2.0, -1.0),
    "Resizing": lambda: layers.Resizing(8, 8),
    "Solarization": lambda: layers.Solarization(value_range=(0, 1), seed=1),
}
# These cannot be compiled: what they compute depends on random numbers that Python draws or reads.
ON_HOST = {
    "AugMix": lambda: layers.AugMix((0, 1), num_chains=1, chain_depth=2, seed=1),
    "RandomElasticTransform": lambda: layers.RandomElasticTransform(value_range=(0, 1), seed=1),
}
# Some of these layers ask for 64-bit integers, which JAX narrows with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
# Keras marks these as not compilable; stock Keras runs models with them step by step, uncompiled.
MARKED = {
    "RandomCrop",
    "RandomPerspective",
    "RandomRotation",
    "RandomShear",
    "RandomTranslation",
    "RandomZoom",
}


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(4)
    return rng.uniform(0, 1, (24, 12, 12, 3)).astype("float32"), rng.integers(0, 3, 24)


def network(name):
    def make(steps):
        model = keras.Sequential(
            [
                keras.Input((12, 12, 3)),
                LAYERS[name](),
                layers.Conv2D(4, 3, strides=2, activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=steps,
        )
        return model

    return make


def fit(pictures, **settings):
    def run(model):
        with warnings.catch_warnings():
            # The engine runs all of these.
            warnings.filterwarnings("error", message=".*[Ss]tock Keras runs")
            recorder = Recorder(batches=False)
            chosen = {"batch_size": 8, "epochs": 2, "verbose": 0, "callbacks": [recorder]}
            return model.fit(*pictures, **(chosen | settings)).history, recorder.calls

    return run


# The usual ones, in the fast tests; those that Keras marks as not compilable follow below.
USUAL = ("CutMix", "MixUp", "RandomContrast", "RandomFlip", "Resizing")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in USUAL else [pytest.mark.slow]) for name in LAYERS],
)
def test_a_layer_in_a_model(pictures, name):
    assert_equivalent(network(name), fit(pictures))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("RandomCrop", "RandomZoom") else [pytest.mark.slow])
        for name in sorted(MARKED)
    ],
)
def test_a_layer_that_keras_marks_as_not_compilable(pictures, name):
    assert LAYERS[name]().supports_jit is False
    make = network(name)

    def run(model):
        history = fit(pictures, validation_data=pictures)(model)
        return history, model.predict(pictures[0], verbose=0)

    assert_equivalent(make, run, steps="auto")


def test_every_augmentation_layer_of_keras_is_compared():
    own = {
        name
        for name in dir(layers)
        if isinstance(getattr(layers, name), type)
        and issubclass(getattr(layers, name), BaseImagePreprocessingLayer)
    }
    # `MaxNumBoundingBoxes` changes bounding boxes alone; a model has none.
    assert own - set(LAYERS) == {*ON_HOST, "MaxNumBoundingBoxes"}


@pytest.mark.parametrize(
    "name", [pytest.param("AugMix", marks=pytest.mark.slow), "RandomElasticTransform"]
)
def test_a_layer_that_decides_in_python_is_run_by_stock_keras(pictures, name):
    def make(steps):
        model = keras.Sequential(
            [
                keras.Input((12, 12, 3)),
                # Stock Keras runs a model with this layer uncompiled.
                layers.RandomTranslation(0.1, 0.1, seed=1),
                ON_HOST[name](),
                layers.Flatten(),
                layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=steps)
        return model

    def run(model):
        return model.fit(*pictures, batch_size=12, verbose=0).history

    with pytest.warns(UserWarning, match=rf"\({name}\) cannot be compiled\. Stock Keras runs fit"):
        assert_equivalent(make, run, steps=1)


@pytest.mark.parametrize("name", ["RandomFlip", "RandomRotation", "RandomCrop"])
def test_a_loaded_model_with_augmentation(pictures, name, tmp_path):
    trained = make_stock(network(name))
    fit(pictures)(trained)
    trained.save(tmp_path / "model.keras")

    def load(_):
        return keras.models.load_model(tmp_path / "model.keras")

    assert load(1).jit_compile == (name == "RandomFlip")
    assert_equivalent(load, fit(pictures), steps=1)


@pytest.mark.parametrize(
    "strategy", [{"devices": 2}, {"gradient_accumulation": 2}], ids=["two replicas", "accumulation"]
)
def test_layers_without_random_numbers_on_a_divided_batch(pictures, strategy):
    # Keras accepts `Equalization` only as the first layer.
    names = ("Equalization", "AutoContrast", "CenterCrop", "Normalization", "Rescaling", "Resizing")

    def make(steps):
        made = [LAYERS[name]() for name in names]
        model = keras.Sequential(
            [keras.Input((12, 12, 3)), *made, layers.Flatten(), layers.Dense(3, "softmax")]
        )
        loss = "sparse_categorical_crossentropy"
        model.compile("sgd", loss, metrics=["accuracy"], steps_per_execution=steps)
        return model

    def run(model):
        return fit(pictures)(model), model.predict(pictures[0], batch_size=8, verbose=0)

    assert_equivalent(make, run, batch="global", **strategy)


@pytest.mark.interop
@parts.needs("TensorFlow")
@pytest.mark.parametrize("strategy", [{}, {"devices": 2}, {"gradient_accumulation": 2}])
def test_text_that_is_vectorized_outside_the_model(strategy):
    texts = np.array(["a red car", "the blue car", "a green tree", "one red tree"] * 6)
    labels = np.arange(24) % 2

    def make(steps):
        model = keras.Sequential(
            [keras.Input((4,)), layers.Embedding(20, 4, mask_zero=True), layers.LSTM(3)]
        )
        model.add(layers.Dense(1, activation="sigmoid"))
        loss = "binary_crossentropy"
        model.compile("sgd", loss, metrics=["accuracy"], steps_per_execution=steps)
        return model

    def run(model):
        vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=4)
        vectorize.adapt(texts)
        return fit((vectorize(texts), labels))(model)

    assert_equivalent(make, run, batch="global", **strategy)


@pytest.mark.parametrize("name", ["RandomRotation", "RandomCrop"])
def test_gradient_accumulation_and_replicas_train(pictures, name):
    model = make_convoy(network(name), 1, devices=2, gradient_accumulation=2, batch="global")
    losses = fit(pictures, epochs=3)(model)[0]["loss"]
    assert np.isfinite(losses).all()


class BuiltByCall(keras.Model):
    """A model whose `call` takes no `training`, and whose `build` calls it.

    Its sequential part is built in that call, and keeps the value that `training` has in it.
    """

    def __init__(self):
        super().__init__()
        self.augmentation = keras.Sequential([layers.RandomFlip(seed=1), layers.RandomZoom(0.2)])

    def build(self, shape):
        self.flatten, self.dense = layers.Flatten(), layers.Dense(3)
        super().build(shape)

    def call(self, x):
        return self.dense(self.flatten(self.augmentation(x)))


@pytest.mark.parametrize("first", ["fit", "evaluate", "predict", "predict_on_batch"])
def test_a_sequential_part_is_first_called_as_stock_keras_calls_it(first):
    x, y = np.random.default_rng(0).uniform(size=(16, 6, 6, 3)).astype("float32"), np.ones((16, 3))

    def make(steps):
        model = BuiltByCall()
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    def run(model):
        if first.startswith("predict"):
            found = getattr(model, first)(x)
        else:
            found = model.evaluate(x, y, verbose=0) if first == "evaluate" else None
        history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        return found, history, model.evaluate(x, y, verbose=0)

    assert_equivalent(make, run)
