"""Replicas of a pipeline add up the metrics that are sums, and refuse others."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from tests.equivalence.side_by_side import assert_same, make_convoy, make_stock

X = np.random.default_rng(4).normal(size=(32, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Kept(keras.metrics.Metric):
    """Keeps what its function makes of what it kept, and of the errors of a batch."""

    def __init__(self, function, shape=()):
        super().__init__(name="kept")
        self.function = function
        self.kept = self.add_variable(shape, "zeros", name="kept")

    def update_state(self, y, y_pred, sample_weight=None):
        del sample_weight
        self.kept.assign(self.function(self.kept.value, ops.abs(y - y_pred)))

    def result(self):
        return ops.sum(self.kept.value)


def counted(kept, errors):
    places = ops.cast(ops.clip(errors[:, 0], 0, 2), "int32")
    return kept.at[places].add(1.0)


SUMS = {
    "sum": (lambda kept, errors: ops.sum(errors) + kept, ()),
    "difference": (lambda kept, errors: kept - ops.sum(errors), ()),
    "counts": (counted, (3,)),
    "by class": (lambda kept, errors: kept + ops.sum(errors, axis=0), (1,)),
    "nothing": (lambda kept, errors: kept, ()),
}
OTHERS = {
    "largest": (lambda kept, errors: ops.maximum(kept, ops.max(errors)), ()),
    "moving average": (lambda kept, errors: 0.9 * kept + 0.1 * ops.mean(errors), ()),
    "twice": (lambda kept, errors: kept + kept + ops.sum(errors), ()),
    "less than": (lambda kept, errors: ops.sum(errors) - kept, ()),
    "last": (lambda kept, errors: ops.sum(errors), ()),
}


def maker(function, shape):
    def make(steps):
        model = keras.Sequential(
            [keras.Input((3,)), layers.Dense(4, "tanh", name="a"), layers.Dense(1, name="b")]
        )
        model.compile("sgd", "mse", metrics=[Kept(function, shape)], steps_per_execution=steps)
        return model

    return make


def in_two_replicas(make):
    model = make_convoy(make, 2, devices=4, gradient_accumulation=2)
    model.set_pipeline_stage_assignment([0, 1])
    return model


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_added_up(name):
    make = maker(*SUMS[name])
    actual = in_two_replicas(make).fit(X, Y, 4, shuffle=False, verbose=0).history
    assert_same(actual, make_stock(make).fit(X, Y, 16, shuffle=False, verbose=0).history)


@pytest.mark.parametrize("name", OTHERS)
def test_a_metric_that_is_no_sum_is_refused(name):
    model = in_two_replicas(maker(*OTHERS[name]))
    for run in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="'kept/kept' is not a sum over batches, and 2 replic"):
            run(X, Y, batch_size=4, verbose=0)
