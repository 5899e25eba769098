"""Whatever is called after whatever, the model goes on as it does under stock Keras."""

import keras
import numpy as np
import pytest
from keras import layers

from . import models
from .side_by_side import assert_equivalent, assert_same, make_convoy, make_stock, state


@pytest.fixture
def xy(table):
    return table[0], table[2]


QUIET = {"batch_size": 30, "verbose": 0}


def test_training_twice_goes_on(xy):
    def run(model):
        return [model.fit(*xy, epochs=2, **QUIET).history for _ in range(2)]

    assert_equivalent(models.with_dropout, run)


@pytest.mark.parametrize("frequency", [None, 2])
def test_training_twice_with_a_moving_average(xy, frequency):
    """At the end of training weights and averages are the same; they must not share memory."""

    def make(steps):
        optimizer = models.momentum(use_ema=True, ema_overwrite_frequency=frequency)
        return models.classifier(steps, optimizer=optimizer)

    model = make_convoy(make)
    model.fit(*xy, epochs=2, **QUIET)
    model.evaluate(*xy, **QUIET)
    model.fit(*xy, epochs=2, **QUIET)
    assert all(np.isfinite(value).all() for value in state(model).values())


def test_everything_in_turn(xy):
    x, y = xy

    def run(model):
        seen = [model.predict(x, **QUIET)]
        seen.append(model.evaluate(x, y, **QUIET))
        seen.append(model.train_on_batch(x[:30], y[:30]))
        seen.append(model.fit(x, y, **QUIET).history)
        seen.append(model.test_on_batch(x[:30], y[:30]))
        seen.append(np.asarray(model.predict_on_batch(x[:7])))
        seen.append(model.fit(x, y, **QUIET).history)
        seen.append(model.evaluate(x[:45], y[:45], **QUIET, return_dict=True))
        return seen

    assert_equivalent(models.with_dropout, run)


def test_train_on_batch(xy):
    x, y = xy
    weight = np.linspace(0, 1, 30).astype("float32")

    def run(model):
        return [
            model.train_on_batch(x[:30], y[:30]),
            model.train_on_batch(x[30:60], y[30:60], return_dict=True),
            model.train_on_batch(x[:30], y[:30], sample_weight=weight),
            model.train_on_batch(x[:30], y[:30], class_weight={0: 2.0, 1: 1.0, 2: 0.5}),
            model.train_on_batch(x[:7], y[:7]),
            model.test_on_batch(x[:30], y[:30], sample_weight=weight),
            model.test_on_batch(x[:30], y[:30], return_dict=True),
        ]

    assert_equivalent(models.classifier, run)


def test_train_on_batch_of_several_inputs_and_outputs(table):
    x, y = models.two_by_two_data(table)
    x = {name: part[:30] for name, part in x.items()}
    y = {name: part[:30] for name, part in y.items()}

    def run(model):
        logs = [model.train_on_batch(x, y, return_dict=True) for _ in range(3)]
        predicted = model.predict_on_batch(x)
        return logs, {name: np.asarray(part) for name, part in predicted.items()}

    assert_equivalent(models.two_by_two, run)


def test_on_batch_methods_return_what_stock_keras_returns(xy):
    x, y = xy
    stock, model = make_stock(models.classifier), make_convoy(models.classifier)
    for method in ("train_on_batch", "test_on_batch"):
        expected = getattr(stock, method)(x[:30], y[:30])
        actual = getattr(model, method)(x[:30], y[:30])
        assert [type(value) for value in actual] == [type(value) for value in expected]
    assert type(model.predict_on_batch(x[:30])) is type(stock.predict_on_batch(x[:30]))
    assert type(model.predict(x[:30], verbose=0)) is type(stock.predict(x[:30], verbose=0))


def test_compiling_anew_with_another_optimizer_and_loss(xy):
    x, y = xy

    def run(model):
        first = model.fit(x, y, epochs=2, **QUIET).history
        steps = model.steps_per_execution
        model.compile(
            keras.optimizers.Adam(1e-2),
            keras.losses.SparseCategoricalCrossentropy(from_logits=False),
            metrics=["accuracy", "sparse_categorical_crossentropy"],
            steps_per_execution=steps,
        )
        second = model.fit(x, y, epochs=2, **QUIET).history
        return first, second, model.evaluate(x, y, **QUIET)

    assert_equivalent(models.classifier, run)


def test_freezing_and_unfreezing_a_layer(xy):
    x, y = xy

    def run(model):
        seen = []
        for trainable in (True, False, True):
            model.layers[0].trainable = trainable
            model.compile(
                models.momentum(),
                "sparse_categorical_crossentropy",
                steps_per_execution=model.steps_per_execution,
            )
            seen.append(model.fit(x, y, epochs=2, **QUIET).history)
        return seen

    assert_equivalent(models.classifier, run)


def test_predict_before_compile(xy):
    def make(steps):
        return keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(2)])

    def run(model):
        return model.predict(xy[0], **QUIET), np.asarray(model.predict_on_batch(xy[0][:5]))

    assert_equivalent(make, run)


def test_a_model_that_is_built_by_its_first_batch(xy):
    def make(steps):
        model = keras.Sequential([layers.Dense(4, "tanh"), layers.Dropout(0.2), layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(models.momentum(), loss, steps_per_execution=steps)
        return model

    def run(model):
        logs = model.train_on_batch(xy[0][:30], xy[1][:30])
        return logs, model.fit(*xy, epochs=2, **QUIET).history

    assert_equivalent(make, run)


def test_a_model_that_builds_itself_does_not_warn_when_it_trains_again(xy):
    def make(steps):
        model = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=steps)
        return model

    def run(model):
        return [model.fit(*xy, **QUIET).history for _ in range(2)]

    assert_equivalent(make, run)


def test_only_the_layers_add_a_loss(xy):
    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.mean(keras.ops.square(inputs - 1.0)))
            return inputs

    def make(steps):
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3), Penalty()])
        model.compile(models.momentum(), steps_per_execution=steps)
        return model

    def run(model):
        return model.fit(xy[0], epochs=2, **QUIET).history

    assert_equivalent(make, run)


# Small and odd --------------------------------------------------------------------------------


def test_a_single_sample(xy):
    x, y = xy[0][:1], xy[1][:1]

    def run(model):
        history = model.fit(x, y, epochs=3, validation_data=(x, y), **QUIET).history
        return history, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)

    assert_equivalent(models.classifier, run)


def test_a_batch_of_one(xy):
    def run(model):
        return model.fit(xy[0][:7], xy[1][:7], batch_size=1, epochs=2, verbose=0).history

    assert_equivalent(models.classifier, run)


def test_no_trainable_weights(xy):
    def make(steps):
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3, "softmax", trainable=False)])
        model.compile(
            models.momentum(), "sparse_categorical_crossentropy", steps_per_execution=steps
        )
        return model

    def run(model):
        return model.evaluate(*xy, **QUIET), model.predict(xy[0], **QUIET)

    assert_equivalent(make, run)


def test_no_weights_at_all(xy):
    def make(steps):
        model = keras.Sequential([keras.Input((6,)), layers.Rescaling(2.0), layers.Softmax()])
        model.compile(loss="mse", steps_per_execution=steps)
        return model

    def run(model):
        return model.evaluate(xy[0], xy[0], **QUIET), model.predict(xy[0], **QUIET)

    assert_equivalent(make, run)


class ArgMax(layers.Layer):
    def call(self, inputs):
        return keras.ops.argmax(inputs, axis=-1)


def test_outputs_in_whole_numbers_and_truth_values(xy):
    def make(steps):
        inputs = keras.Input((6,))
        hidden = layers.Dense(3)(inputs)
        return keras.Model(inputs, {"class": ArgMax()(hidden), "positive": hidden > 0})

    def run(model):
        return model.predict(xy[0], batch_size=40, verbose=0)

    assert_equivalent(make, run)


def test_outputs_that_share_no_batch_axis_are_joined_as_in_stock_keras(xy):
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, inputs):
            return self.dense(inputs), (inputs[:, :2], {"double": inputs * 2})

    def run(model):
        return model.predict(xy[0], batch_size=40, verbose=0)

    assert_equivalent(lambda steps: Two(), run)


def test_a_layer_shared_by_two_models(xy):
    def run_shared(model):
        other = keras.Sequential([keras.Input((6,)), model.layers[0], layers.Dense(1)])
        other.compile("sgd", "mse")
        first = model.fit(*xy, **QUIET).history
        second = other.fit(xy[0], xy[0][:, :1], **QUIET).history
        return first, second, model.fit(*xy, **QUIET).history

    assert_equivalent(models.classifier, run_shared)


# Interruptions --------------------------------------------------------------------------------


class Raise(keras.callbacks.Callback):
    def __init__(self, error, hook):
        super().__init__()
        self.error = error
        setattr(self, hook, self._raise)

    def _raise(self, number=None, logs=None):
        if number in (2, 1):
            raise self.error("from a callback")


@pytest.mark.parametrize(
    ("error", "hook"),
    [
        (ValueError, "on_train_batch_end"),
        (KeyboardInterrupt, "on_epoch_end"),
        (KeyboardInterrupt, "on_test_batch_end"),
    ],
)
def test_an_exception_in_a_callback(xy, error, hook):
    def run(model):
        with pytest.raises(error, match="from a callback"):
            model.fit(
                *xy,
                epochs=3,
                callbacks=[Raise(error, hook)],
                shuffle=False,
                validation_data=xy,
                **QUIET,
            )
        after = state(model)
        return after, model.fit(*xy, epochs=2, **QUIET).history, model.evaluate(*xy, **QUIET)

    assert_equivalent(models.classifier, run, 1)
    # With more steps in a call the exception comes later, and the model is as usable.
    model = make_convoy(models.classifier, 3)
    run(model)


@pytest.mark.parametrize("steps", [1, 3])
def test_an_exception_in_a_generator(xy, steps):
    x, y = xy

    def batches():
        for _ in range(4):
            yield x[:30], y[:30]
        raise OSError("from a generator")

    model = make_convoy(models.classifier, steps)
    with pytest.raises(OSError, match="from a generator"):
        model.fit(batches(), steps_per_epoch=10, shuffle=False, verbose=0)
    assert all(np.isfinite(value).all() for value in state(model).values())
    history = model.fit(x, y, epochs=3, **QUIET).history
    assert history["loss"][-1] < history["loss"][0]


def test_an_interrupted_run_leaves_the_steps_that_were_done(xy):
    """Four steps are done when the callback raises at the fourth: the weights show them."""
    x, y = xy

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                raise KeyboardInterrupt

    def run(model):
        with pytest.raises(KeyboardInterrupt):
            model.fit(x, y, callbacks=[Interrupt()], shuffle=False, **QUIET)
        return int(model.optimizer.iterations), state(model)

    expected = run(make_stock(models.classifier))
    assert expected[0] == 4
    assert_same(run(make_convoy(models.classifier, 2)), expected)
