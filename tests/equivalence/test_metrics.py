"""Every kind of metric gives the same number, in training, validation and evaluation."""

import re

import convoy
import keras
import numpy as np
import pytest
from keras import metrics, ops

from . import models
from .side_by_side import assert_equivalent, make_convoy, make_stock


def measure(x, y, **settings):
    def run(model):
        history = model.fit(
            x,
            y,
            batch_size=30,
            epochs=3,
            validation_split=0.2,
            verbose=0,
            **settings,
        )
        flat = model.evaluate(x, y, batch_size=30, verbose=0)
        named = model.evaluate(x, y, batch_size=30, verbose=0, return_dict=True)
        return history.history, flat, named, model.metrics_names

    return run


class WorstError(metrics.Metric):
    """A metric that is neither a sum nor a mean."""

    def __init__(self, name="worst_error", **settings):
        super().__init__(name=name, **settings)
        self.worst = self.add_variable((), "zeros", name="worst")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = ops.max(ops.abs(ops.cast(y_true, y_pred.dtype) - y_pred))
        self.worst.assign(ops.maximum(ops.convert_to_tensor(self.worst), error))

    def result(self):
        return ops.convert_to_tensor(self.worst)


class Spread(metrics.Metric):
    """A custom metric that keeps sums, and whose initial state is not zero."""

    def __init__(self, name="spread", **settings):
        super().__init__(name=name, **settings)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")
        self.count = self.add_weight(shape=(), initializer="ones", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.square(y_pred)))
        self.count.assign_add(ops.cast(ops.shape(y_pred)[0], "float32"))

    def result(self):
        return self.total / self.count


def mean_sign(y_true, y_pred):
    return ops.mean(ops.sign(y_pred), axis=-1)


# Keras asks JAX for int64 in these, and gets int32 unless x64 is on.
iou = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")


@iou
def test_metrics_of_classes(table):
    def make(steps):
        return models.classifier(
            steps,
            metrics=[
                "accuracy",
                "sparse_categorical_accuracy",
                metrics.SparseTopKCategoricalAccuracy(2),
                metrics.MeanIoU(3, sparse_y_pred=False),
                metrics.SparseCategoricalCrossentropy(),
            ],
        )

    assert_equivalent(make, measure(table[0], table[2]))


@pytest.mark.slow
@iou
def test_metrics_of_one_hot_classes(table):
    def make(steps):
        return models.classifier(
            steps,
            loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
            metrics=[
                "accuracy",
                metrics.AUC(num_thresholds=20, multi_label=True),
                metrics.AUC(num_thresholds=20, curve="PR", name="pr"),
                metrics.Precision(),
                metrics.Recall(thresholds=[0.3, 0.7]),
                metrics.F1Score(average="macro"),
                metrics.TopKCategoricalAccuracy(2),
                metrics.OneHotMeanIoU(3),
                metrics.CosineSimilarity(),
            ],
        )

    assert_equivalent(make, measure(table[0], keras.utils.to_categorical(table[2], 3)))


def test_metrics_of_numbers(table):
    def make(steps):
        return models.regressor(
            steps,
            metrics=[
                "mae",
                metrics.RootMeanSquaredError(),
                metrics.R2Score(),
                metrics.MeanAbsolutePercentageError(),
                metrics.MeanMetricWrapper(mean_sign, name="wrapped"),
                WorstError(),
                Spread(),
                mean_sign,
            ],
        )

    assert_equivalent(make, measure(table[0], table[1]))


def test_binary_metrics(table):
    def make(steps):
        return models.regressor(
            steps,
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[
                metrics.AUC(num_thresholds=10, from_logits=True),
                metrics.Precision(thresholds=0.0),
                metrics.F1Score(threshold=0.5),
                metrics.BinaryAccuracy(threshold=0.0),
                metrics.TruePositives(),
                metrics.FalseNegatives(),
                metrics.SensitivityAtSpecificity(0.5, num_thresholds=10),
                metrics.Hinge(),
            ],
        )

    assert_equivalent(make, measure(table[0], (table[1] > 0).astype("float32")))


def test_weighted_metrics_with_a_smaller_last_batch(table):
    weight = np.linspace(0, 2, 150).astype("float32")

    def make(steps):
        return models.regressor(
            steps, metrics=["mae"], weighted_metrics=["mae", metrics.MeanSquaredError()]
        )

    def run(model):
        history = model.fit(*table[:2], batch_size=40, epochs=2, sample_weight=weight, verbose=0)
        return history.history, model.evaluate(*table[:2], 40, 0, sample_weight=weight)

    assert_equivalent(make, run)


def test_metrics_of_several_outputs(table):
    def make(steps):
        return models.two_by_two(
            steps,
            metrics={"kind": ["accuracy", metrics.SparseTopKCategoricalAccuracy(2)]},
            weighted_metrics={"amount": ["mae", WorstError()]},
        )

    x, y = models.two_by_two_data(table)

    def run(model):
        history = model.fit(x, y, batch_size=30, epochs=3, verbose=0).history
        return history, model.evaluate(x, y, verbose=0, return_dict=True)

    assert_equivalent(make, run)


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_reductions_of_a_loss(table, reduction):
    def make(steps):
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        return models.regressor(steps, loss=loss, optimizer=keras.optimizers.SGD(1e-3))

    assert_equivalent(make, measure(table[0], table[1]))


class OwnLoss(keras.Model):
    """Computes its loss itself, and keeps a metric of it."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.penalty = metrics.Mean(name="penalty")

    def call(self, inputs):
        return self.dense(inputs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        penalty = ops.mean(ops.abs(y_pred))
        self.penalty.update_state(penalty)
        return ops.mean(ops.square(y - y_pred)) + 0.1 * penalty


class OwnMetrics(keras.Model):
    """Returns logs of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.bias = metrics.Mean(name="bias")

    def call(self, inputs):
        return self.dense(inputs)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        self.bias.update_state(ops.mean(y_pred - y))
        logs["bias"] = self.bias.result()
        logs["last_batch"] = ops.mean(ops.abs(y_pred - y))
        return logs


class ListedMetrics(OwnLoss):
    """Names its own metric once more, beside those that Keras has found by itself."""

    @property
    def metrics(self):
        return [*super().metrics, self.penalty]


@pytest.mark.parametrize("kind", [OwnLoss, OwnMetrics, ListedMetrics])
def test_a_model_that_overrides_loss_or_metrics(table, kind):
    def make(steps):
        model = kind()
        model.compile(models.momentum(), "mse", metrics=["mae"], steps_per_execution=steps)
        return model

    assert_equivalent(make, measure(table[0], table[1]))


def test_metrics_start_anew_in_each_epoch_and_can_be_read_afterwards(table):
    def run(model):
        model.fit(table[0], table[2], batch_size=30, epochs=2, verbose=0)
        return [float(metric.result()) for metric in model.metrics if metric.name == "loss"]

    assert_equivalent(models.classifier, run)


class Observed(keras.layers.Layer):
    """Updates a metric while the model is called, which stock Keras cannot do on JAX."""

    def __init__(self):
        super().__init__()
        self.seen = metrics.Mean(name="seen")

    def call(self, inputs):
        self.seen.update_state(ops.mean(inputs))
        return inputs


@pytest.mark.parametrize("stages", [1, 2])
def test_a_metric_that_a_layer_updates_in_call_is_refused(table, stages):
    def make(steps):
        model = keras.Sequential([keras.Input((6,)), Observed(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    x, y = table[0] + 1, table[1]
    with pytest.raises(TypeError):
        make_stock(make).fit(x, y, batch_size=30, verbose=0)
    model = make_convoy(make, devices=stages)
    if stages > 1:
        convoy.split(model, ["dense"])
    refusal = "Layer 'observed' updates metric 'seen' in call()"
    with pytest.raises(ValueError, match=re.escape(refusal)):
        model.fit(x, y, batch_size=30, verbose=0)
    with pytest.raises(ValueError, match=re.escape(refusal)):
        model.evaluate(x, y, batch_size=30, verbose=0)
    assert model.predict(x, batch_size=30, verbose=0).shape == (len(x), 1)
