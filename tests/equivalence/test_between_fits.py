"""A model that is changed between two fits trains on as in stock Keras."""

import keras
import numpy as np
import pytest
from keras import layers

from .side_by_side import IN_EVERY_STRATEGY, Recorder, assert_equivalent


def make(steps):
    model = keras.Sequential(
        [
            keras.Input((10, 10, 1)),
            layers.Conv2D(4, 3, activation="tanh", name="features"),
            layers.Flatten(),
            layers.Dense(12, "tanh", name="hidden"),
            layers.Dense(10, "softmax", name="head"),
        ]
    )
    compile_model(model, steps)
    return model


def make_with_normalization(steps):
    model = keras.Sequential(
        [
            keras.Input((10, 10, 1)),
            layers.Conv2D(4, 3, name="features"),
            layers.BatchNormalization(name="norm"),
            layers.Flatten(),
            layers.Dense(10, "softmax"),
        ]
    )
    compile_model(model, steps)
    return model


def make_stateful(steps):
    model = keras.Sequential(
        [
            keras.Input((5, 3), batch_size=10),
            layers.GRU(4, stateful=True, name="stateful"),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", steps_per_execution=steps)
    return model


def compile_model(model, steps):
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loss = "sparse_categorical_crossentropy"
    model.compile(optimizer, loss, metrics=["accuracy"], steps_per_execution=steps)


def fit_twice(change, data, batch_size=20):
    """Return a run of two fits, with a change of the model in between."""

    def run(model):
        outcomes = []
        for number in range(2):
            recorder = Recorder(batches=False)
            settings = {"batch_size": batch_size, "verbose": 0, "callbacks": [recorder]}
            history = model.fit(*data, epochs=2, validation_data=data, **settings).history
            predicted = model.predict(data[0], batch_size=batch_size, verbose=0)
            outcomes.append((history, recorder.calls, predicted))
            if number == 0:
                change(model)
        return outcomes

    return run


def recompile(model):
    compile_model(model, model.steps_per_execution)


def freeze_a_layer(model):
    model.get_layer("features").trainable = False
    recompile(model)


def freeze_all_but_the_head(model):
    for layer in model.layers[:-1]:
        layer.trainable = False
    recompile(model)


def enable_lora(model):
    for layer in model.layers[:1] + model.layers[2:]:
        layer.enable_lora(2)
    recompile(model)


def set_the_learning_rate(model):
    model.optimizer.learning_rate = 0.001


def set_weights(model):
    head = model.get_layer("head")
    head.set_weights([0.5 * weight for weight in head.get_weights()])


def compile_with_another_optimizer(model):
    steps = model.steps_per_execution
    model.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=steps)


CHANGES = [
    freeze_a_layer,
    freeze_all_but_the_head,
    enable_lora,
    set_the_learning_rate,
    set_weights,
    compile_with_another_optimizer,
]


@IN_EVERY_STRATEGY
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_between_two_fits(images, change, strategy):
    assert_equivalent(make, fit_twice(change, images), **strategy)


def test_a_model_that_was_frozen_is_trained_whole(images):
    def make_frozen(steps):
        model = make(steps)
        freeze_all_but_the_head(model)
        return model

    def unfreeze(model):
        model.trainable = True
        recompile(model)

    assert_equivalent(make_frozen, fit_twice(unfreeze, images))


def test_frozen_normalization_keeps_its_statistics(images):
    def freeze(model):
        model.get_layer("norm").trainable = False
        recompile(model)

    assert_equivalent(make_with_normalization, fit_twice(freeze, images))


@pytest.mark.parametrize("reset", [True, False])
def test_the_state_of_a_recurrent_layer(reset):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 5, 3)).astype("float32")
    y = x.sum((1, 2))[:, None]

    def change(model):
        if reset:
            model.get_layer("stateful").reset_state()

    assert_equivalent(make_stateful, fit_twice(change, (x, y), batch_size=10))
