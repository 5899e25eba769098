"""Overridden methods of a model run, and what they call by `super()` is the engine."""

import keras
import numpy as np
import pytest

from .side_by_side import IN_EVERY_STRATEGY, Recorder, assert_equivalent, make_convoy


class Overrides(keras.Sequential):
    """A model that changes the arguments and the results of its trainer's methods."""

    calls = ()

    def compile(self, optimizer="adam", loss="mse", rate=None, **settings):
        super().compile(keras.optimizers.get(optimizer), loss, **settings)
        if rate is not None:
            self.optimizer.learning_rate = rate

    def fit(self, x=None, y=None, scale=1.0, **settings):
        self.calls = (*self.calls, "fit")
        return super().fit(x * scale, y, **settings)

    def evaluate(self, x=None, y=None, **settings):
        self.calls = (*self.calls, "evaluate")
        # `fit` would use its own copy of the validation data.
        settings.pop("_use_cached_eval_dataset", None)
        return super().evaluate(x * 2, y, **settings)

    def predict(self, x, **settings):
        return super().predict(x, **settings) + 1

    def train_on_batch(self, x, y, **settings):
        return super().train_on_batch(x, 3 * y, **settings)


def make(steps):
    model = Overrides([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
    model.compile("sgd", rate=0.02, metrics=["mae"], steps_per_execution=steps)
    return model


@IN_EVERY_STRATEGY
def test_overridden_methods(table, strategy):
    x, y, _ = table

    def run(model):
        recorder = Recorder(batches=False)
        settings = {"batch_size": 30, "epochs": 2, "verbose": 0, "callbacks": [recorder]}
        history = model.fit(x, y, 0.5, validation_data=(x, y), **settings).history
        return (
            history,
            recorder.calls,
            model.evaluate(x, y, batch_size=50, verbose=0, return_dict=True),
            model.predict(x, batch_size=50, verbose=0),
            model.train_on_batch(x[:60], y[:60], return_dict=True),
            list(model.calls),
        )

    assert_equivalent(make, run, **strategy)


def test_an_override_reaches_the_engine(table, monkeypatch):
    from convoy.engine.program import WholeModelRunner

    chunks = []
    run = WholeModelRunner.run
    monkeypatch.setattr(
        WholeModelRunner, "run", lambda self, chunk: chunks.append(chunk) or run(self, chunk)
    )
    model = make_convoy(make, 5)
    model.fit(table[0], table[1], batch_size=30, verbose=0)
    assert [chunk.steps for chunk in chunks] == [5]


def test_a_method_that_is_called_on_the_class(table):
    x, y, _ = table

    def run(model):
        return keras.Model.fit(model, x, y, batch_size=30, verbose=0).history

    assert_equivalent(make, run)


def test_keras_rejects_unknown_arguments_as_before(table):
    model = make_convoy(make)
    with pytest.raises(TypeError, match="epoch"):
        model.fit(table[0], table[1], epoch=3)
    with pytest.raises(ValueError, match="takes no argument step"):
        model.evaluate(table[0], table[1], step=3)


class TaskLike(keras.Model):
    """Preprocesses what it is given, in each method, as task models of KerasHub do."""

    def __init__(self, **settings):
        inputs = keras.Input((4,))
        super().__init__(inputs, keras.layers.Dense(3, activation="softmax")(inputs), **settings)

    @staticmethod
    def preprocess(words):
        return np.array([[len(word), word.count("a"), word.count("e"), 1] for word in words], "f4")

    def fit(self, x=None, y=None, validation_data=None, **settings):
        return super().fit(self.preprocess(x), y, validation_data=validation_data, **settings)

    def evaluate(self, x=None, y=None, **settings):
        settings.pop("_use_cached_eval_dataset", None)
        return super().evaluate(self.preprocess(x), y, **settings)

    def predict(self, x, **settings):
        return super().predict(self.preprocess(x), **settings)


@IN_EVERY_STRATEGY
def test_a_model_that_preprocesses_text(strategy):
    words = ["banana", "see", "tree", "a", "eel", "area", "bee", "nana"] * 5
    validation = np.array(words), np.arange(40) % 3
    y = np.arange(40) % 3

    def make(steps):
        model = TaskLike()
        model.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=steps)
        return model

    def run(model):
        recorder = Recorder(batches=False)
        settings = {"batch_size": 8, "epochs": 2, "verbose": 0, "callbacks": [recorder]}
        history = model.fit(words, y, validation_data=validation, **settings).history
        return history, recorder.calls, model.predict(words, verbose=0)

    assert_equivalent(make, run, **strategy)
