"""Several replicas with batch size b do what stock Keras does with one batch of all of theirs."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers, metrics

from . import models
from .side_by_side import assert_same, make_convoy, make_stock, state
from .test_metrics import Spread


@pytest.fixture
def xy(table):
    """144 samples: whole weight updates of 24 for two, three or four replicas."""
    return table[0][:144], table[2][:144]


def compare(make, run, replicas, steps=4, **strategy):
    """Compare `run(model, batch_size)` for a global batch of 24 samples."""
    stock = make_stock(make)
    expected = run(stock, 24), state(stock)
    model = make_convoy(make, steps, devices=replicas, **strategy)
    actual = run(model, 24 // replicas), state(model)
    assert_same(actual, expected)


def learn(xy, **settings):
    def run(model, batch_size):
        return model.fit(*xy, batch_size=batch_size, epochs=3, verbose=0, **settings).history

    return run


def learn_and_use(xy):
    def run(model, batch_size):
        settings = {"batch_size": batch_size, "verbose": 0}
        history = model.fit(*xy, epochs=3, validation_data=xy, **settings)
        return (
            history.history,
            model.evaluate(*xy, batch_size=batch_size, verbose=0),
            model.predict(xy[0], batch_size=batch_size, verbose=0),
        )

    return run


@pytest.mark.parametrize("replicas", [2, 4])
def test_training_is_that_of_one_big_batch(xy, replicas):
    compare(models.classifier, learn_and_use(xy), replicas)


def test_training_is_that_of_one_big_batch_when_streamed(xy):
    compare(models.classifier, learn_and_use(xy), 2, data_budget=0)


def test_images(images):
    x, y = images[0][:96], images[1][:96]

    def make(steps):
        model = keras.Sequential(
            [
                keras.Input((10, 10, 1)),
                layers.Conv2D(4, 3, activation="tanh"),
                layers.AveragePooling2D(2),
                layers.Flatten(),
                layers.Dense(10, "softmax"),
            ]
        )
        loss = "sparse_categorical_crossentropy"
        model.compile(models.momentum(), loss, metrics=["accuracy"], steps_per_execution=steps)
        return model

    compare(make, learn((x, y)), 2)


def test_sample_weight(xy):
    weight = np.linspace(0, 2, 144).astype("float32")
    compare(models.classifier, learn(xy, sample_weight=weight), 2)


@pytest.mark.slow
def test_class_weight(xy):
    compare(models.classifier, learn(xy, class_weight={0: 3.0, 1: 0.5, 2: 1.0}), 2)


def test_metrics(xy):
    x, y = xy[0], keras.utils.to_categorical(xy[1], 3)

    def make(steps):
        return models.classifier(
            steps,
            loss="categorical_crossentropy",
            metrics=[
                "accuracy",
                metrics.AUC(num_thresholds=20),
                metrics.Precision(),
                metrics.F1Score(average="macro"),
                metrics.R2Score(),
                Spread(),
            ],
        )

    compare(make, learn((x, y)), 2)


class Largest(keras.metrics.Metric):
    """No sum, nor a mean: what replicas have of it cannot be put together."""

    def __init__(self, aggregation):
        super().__init__(name=f"largest_{aggregation}")
        self.largest = self.add_variable((), "zeros", aggregation=aggregation, name="largest")
        self.average = self.add_variable((), "ones", aggregation=aggregation, name="average")

    def update_state(self, y, y_pred, sample_weight=None):
        del y
        size = keras.ops.abs(y_pred)
        if sample_weight is not None:
            size = size * sample_weight[:, None]
        self.largest.assign(keras.ops.maximum(self.largest.value, keras.ops.max(size)))
        self.average.assign(0.9 * self.average.value + 0.1 * keras.ops.mean(size))

    def result(self):
        return self.largest.value + self.average.value


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_metrics_of_the_users_own(xy, replicas):
    weight = np.linspace(0.5, 2, len(xy[0])).astype("float32")

    def make(steps):
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3, "softmax")])
        model.compile(
            "sgd",
            "sparse_categorical_crossentropy",
            metrics=["accuracy", Largest("sum")],
            weighted_metrics=[Largest("mean"), "accuracy"],
            steps_per_execution=steps,
        )
        return model

    compare(make, learn(xy, sample_weight=weight), replicas)


def test_several_inputs_and_outputs(table):
    x, y = models.two_by_two_data(table)
    x = {name: part[:144] for name, part in x.items()}
    y = {name: part[:144] for name, part in y.items()}
    compare(models.two_by_two, learn((x, y)), 2)


def test_regularisers_and_clipping(xy):
    def make(steps):
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, "tanh", kernel_regularizer="l2"),
                layers.Dense(3, "softmax"),
            ]
        )
        optimizer = models.momentum(global_clipnorm=0.1)
        model.compile(optimizer, "sparse_categorical_crossentropy", steps_per_execution=steps)
        return model

    compare(make, learn(xy), 2)


@pytest.mark.parametrize("samples", [1, 25, 143])
def test_evaluate_and_predict_never_lose_a_sample(xy, samples):
    never_lose_a_sample(xy, samples, None)


@pytest.mark.parametrize("samples", [25])
def test_evaluate_and_predict_never_lose_a_sample_when_streamed(xy, samples):
    never_lose_a_sample(xy, samples, 0)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [2, 3, 4, 5, 23, 24, 26, 47, 49, 100])
@pytest.mark.parametrize("budget", [None, 0])
def test_evaluate_and_predict_never_lose_a_sample_of_any_number(xy, samples, budget):
    never_lose_a_sample(xy, samples, budget)


def never_lose_a_sample(xy, samples, budget):
    x, y = xy[0][:samples], xy[1][:samples]

    def run(model, batch_size):
        return (
            model.evaluate(x, y, batch_size=batch_size, verbose=0),
            model.predict(x, batch_size=batch_size, verbose=0),
        )

    compare(models.classifier, run, 4, data_budget=budget)


def test_evaluate_and_predict_on_a_generator_never_lose_a_sample(xy):
    x, y = xy

    def batches(size):
        for start in range(0, 100, size):
            yield x[start : min(100, start + size)], y[start : min(100, start + size)]

    def run(model, batch_size):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # stock Keras: the generator has ended
            return (
                model.evaluate(batches(batch_size), verbose=0),
                model.predict(batches(batch_size), verbose=0),
            )

    compare(models.classifier, run, 4)


def test_samples_that_do_not_fill_a_weight_update_are_left_out(xy):
    x, y = xy
    stock = make_stock(models.classifier)
    expected = stock.fit(x[:120], y[:120], batch_size=24, epochs=2, shuffle=False, verbose=0)
    model = make_convoy(models.classifier, devices=2)
    with pytest.warns(UserWarning, match="10"):
        actual = model.fit(x[:130], y[:130], batch_size=12, epochs=2, shuffle=False, verbose=0)
    assert_same(actual.history, expected.history)
    assert_same(state(model), state(stock))


def test_on_batch_methods(xy):
    x, y = xy[0][:24], xy[1][:24]

    def run(model, batch_size):
        return (
            [model.train_on_batch(x, y) for _ in range(3)],
            model.test_on_batch(x, y, return_dict=True),
            np.asarray(model.predict_on_batch(x[:5])),
        )

    compare(models.classifier, run, 2)


def test_train_on_batch_keeps_a_batch_that_replicas_cannot_divide(xy):
    x, y = xy[0][:7], xy[1][:7]
    compare(models.classifier, lambda model, _: model.train_on_batch(x, y), 2)


def test_moving_statistics_are_averaged_over_replicas(rng):
    """Each replica normalises its own share; the statistics advance by the mean of theirs."""
    x = rng.normal(2.0, 3.0, (48, 4)).astype("float32")

    def make(steps):
        model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(momentum=0.9)])
        model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=steps)
        return model

    model = make_convoy(make, 4, devices=2)
    model.fit(x, x, batch_size=6, epochs=1, shuffle=False, verbose=0)
    mean, variance = np.zeros(4), np.ones(4)
    for update in x.astype("float64").reshape(4, 2, 6, 4):
        mean = 0.9 * mean + 0.1 * update.mean(axis=1).mean(axis=0)
        variance = 0.9 * variance + 0.1 * update.var(axis=1).mean(axis=0)
    layer = model.layers[0]
    assert_same(np.asarray(layer.moving_mean), mean.astype("float32"))
    assert_same(np.asarray(layer.moving_variance), variance.astype("float32"))


class Noise(layers.Layer):
    """Dropout that is also there in prediction."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(3)

    def call(self, inputs):
        return keras.random.dropout(inputs, 0.5, seed=self.generator)


def noise(steps):
    head = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((64,)), Noise(), head])
    # The gradient of the kernel is then the mean over the batch of what dropout let through.
    model.compile(keras.optimizers.SGD(1.0), lambda y, y_pred: y_pred, steps_per_execution=steps)
    return model


@pytest.mark.parametrize("budget", [None, 0])
def test_dropout_differs_from_replica_to_replica_and_can_be_repeated(budget):
    x = np.ones((2, 64), "float32")

    def update():
        model = make_convoy(noise, 1, devices=2, data_budget=budget)
        model.fit(x, x[:, :1], batch_size=1, verbose=0)
        return -np.asarray(model.layers[-1].kernel)

    first = update()
    # Each replica lets through 0 or 2; their mean is 1 exactly where they differ.
    assert set(np.unique(first)) == {0.0, 1.0, 2.0}
    assert_same(update(), first, exact=True)


def test_random_layers_in_prediction_differ_from_replica_to_replica():
    def make(steps):
        return keras.Sequential([keras.Input((64,)), Noise()])

    model = make_convoy(make, 2, devices=2)
    steps = model.predict(np.ones((8, 64), "float32"), batch_size=2, verbose=0)
    shares = steps.reshape(4, 2, 64)  # two steps of two replicas of two samples
    assert len({share.tobytes() for share in shares}) == 4


def test_replicas_agree_after_training(xy):
    model = make_convoy(models.with_dropout, devices=4)
    model.fit(*xy, batch_size=6, epochs=2, verbose=0)
    for variable in [*model.variables, *model.optimizer.variables]:
        copies = [np.asarray(shard.data) for shard in variable.value.addressable_shards]
        assert len(copies) == 4
        assert_same(copies[1:], copies[:1] * 3, exact=True)
