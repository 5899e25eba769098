"""Models of KerasHub train as they come: on one device, on replicas and in pipeline stages."""

import functools

import convoy
import keras
import numpy as np
import pytest
from convoy.pipeline.stages import calls_of
from keras import layers
from tests import parts

from .hub_cases import CASES, CLASSES, ILL_CONDITIONED
from .side_by_side import (
    FLOAT64_TOLERANCE,
    assert_same,
    assert_within_rounding,
    in_float64,
    make_convoy,
    make_stock,
    state,
)

pytestmark = [
    pytest.mark.interop,
    parts.needs("KerasHub"),
    # TensorFlow's and KerasHub's own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ALL_CASES = CASES | ILL_CONDITIONED
BATCH = 4
PREPARED = [("ViTImageClassifier", "prepare"), ("BertTextClassifier", "prepare")]


def task(name, dropout=True):
    """Return a function that makes and compiles a task; its loss and metrics are its own."""

    def make(steps):
        import keras_hub

        model = ALL_CASES[name].make(keras_hub.models)
        dropouts = [kept for kept in model._flatten_layers() if isinstance(kept, layers.Dropout)]
        assert any(layer.rate for layer in dropouts) == ALL_CASES[name].drops
        for layer in () if dropout else dropouts:
            layer.rate = 0
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
        model.compile(optimizer=optimizer, steps_per_execution=steps)
        return model

    return make


def learn(name, model):
    """Train with the task's own `fit`, which makes a dataset of the arrays."""
    x, y, *weight = ALL_CASES[name].data(np.random.default_rng(0))
    settings = {"sample_weight": weight[0]} if weight else {}
    settings |= {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, epochs=2, **settings).history
    return history, state(model)


@functools.cache
def stock(name, dropout=True):
    return learn(name, make_stock(task(name, dropout)))


@pytest.mark.parametrize(("name", "way"), [*((name, "scope") for name in CASES), *PREPARED])
def test_one_device(name, way):
    assert_same(learn(name, make_convoy(task(name), 2, way=way)), stock(name))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", ILL_CONDITIONED)
def test_float32_of_a_network_that_amplifies_rounding(name, devices):
    settings = {"devices": devices, "batch": "global", "batch_norm_group": devices}
    # A gradient that passes a ReLU or not moves weights or not: one draw in six finds it.
    assert_within_rounding(task(name), lambda model: learn(name, model)[0], 2, draws=6, **settings)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", ILL_CONDITIONED)
def test_in_float64(name, devices):
    with in_float64():
        expected = learn(name, make_stock(task(name)))
        settings = {"devices": devices, "batch": "global", "batch_norm_group": devices}
        actual = learn(name, make_convoy(task(name), 2, **settings))
        assert_same(actual, expected, tolerance=FLOAT64_TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_two_replicas(name):
    groups = {"batch_norm_group": 2} if CASES[name].normalizes else {}
    dropout = not CASES[name].drops
    model = make_convoy(task(name, dropout), 2, devices=2, batch="global", **groups)
    assert_same(learn(name, model), stock(name, dropout))


@pytest.mark.parametrize("name", CASES)
def test_two_devices_with_a_stage_each(name):
    settings = {"gradient_accumulation": 2, "batch": "global"}
    make = task(name, dropout=not CASES[name].drops)
    expected = stock(name, dropout=not CASES[name].drops)
    if CASES[name].normalizes:
        # Batch normalisation sees micro-batches, as it does without stages.
        expected = learn(name, make_convoy(make, 2, **settings))
    model = make_convoy(make, 2, devices=2, **settings)
    if CASES[name].shares_embedding:
        with pytest.raises(ValueError, match=r"share a weight|runs several times"):
            convoy.split(model, stages=2)
        split_around_the_embedding(model)
    else:
        # Texts have no fixed length, so the first batch gives the sizes.
        convoy.split(model, stages=2, batch_size=BATCH // 2)
    assert_same(learn(name, model), expected)
    assert max(model.get_pipeline_stage_assignment()) > 0


def split_around_the_embedding(model):
    """Put the first half of the layers, and the last ones, on one device, the rest on another."""
    calls = calls_of(model)
    held = [{id(variable) for variable in call.variables} for call in calls]
    again = max(i for i, own in enumerate(held) if any(own & before for before in held[:i]))
    half = len(calls) // 2
    assert 0 < half < again
    stages = [0] * half + [1] * (again - half) + [2] * (len(calls) - again)
    model.set_pipeline_stage_assignment(stages)
    model.set_pipelining_options(device_mapping=[0, 1, 0])


def test_a_task_as_it_comes_with_its_preprocessor():
    """Images of another size go through the task's own preprocessor, loss and optimizer."""
    import keras_hub

    rng = np.random.default_rng(1)
    x = rng.uniform(0, 255, (8, 20, 20, 3)).astype("float32")
    y = rng.integers(0, CLASSES, 8).astype("int32")

    def make(steps):
        models = keras_hub.models
        converter = keras_hub.layers.ViTImageConverter(image_size=(16, 16), scale=1 / 255)
        preprocessor = models.ViTImageClassifierPreprocessor(converter)
        backbone = models.ViTBackbone((16, 16, 3), (4, 4), 1, 2, 8, 12)
        return models.ViTImageClassifier(backbone, CLASSES, preprocessor=preprocessor)

    def run(model):
        settings = {"batch_size": 4, "shuffle": False, "verbose": 0}
        history = model.fit(x, y, epochs=2, validation_data=(x, y), **settings).history
        return history, model.predict(x, batch_size=4, verbose=0)

    assert_same(run(make_convoy(make, 1)), run(make_stock(make)))
