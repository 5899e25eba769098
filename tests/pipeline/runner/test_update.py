"""The weight update in parts, one for each device, is that of the whole optimizer."""

import keras
import numpy as np
import pytest
from convoy.optimizers import Regularized
from keras import layers, optimizers
from tests.equivalence.side_by_side import assert_same, make_convoy, make_stock, state


def without_biases(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


OPTIMIZERS = {
    # Slots that are named alike, and variables that belong to no weight.
    "adafactor": lambda: optimizers.Adafactor(0.01),
    "nadam": lambda: optimizers.Nadam(0.01),
    # Other slots for layers of some names.
    "muon": lambda: optimizers.Muon(0.01, exclude_layers=["second"]),
    # What they are told when they have been made.
    "excluded": lambda: without_biases(optimizers.AdamW(0.01, weight_decay=0.5)),
    "excluded inside": lambda: Regularized(
        without_biases(optimizers.SGD(0.01, momentum=0.9, weight_decay=0.5)), l2=0.1
    ),
}


def network(optimizer, frozen=()):
    """Two stages with weights, and one without any."""

    def make(steps):
        parts = [
            keras.Input((6,)),
            layers.Dense(5, "tanh", name="first"),
            layers.Dense(1, name="second"),
            layers.Activation("tanh", name="third"),
        ]
        model = keras.Sequential(parts)
        for name in frozen:
            model.get_layer(name).trainable = False
        model.compile(OPTIMIZERS[optimizer](), "mse", steps_per_execution=steps)
        return model

    return make


def assert_same_in_stages(make):
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(48, 6)).astype("float32"), rng.normal(size=(48, 1)).astype("float32")

    def train(model, batch_size):
        return model.fit(x, y, batch_size=batch_size, epochs=2, verbose=0).history, state(model)

    model = make_convoy(make, 4, devices=3, gradient_accumulation=2)
    model.set_pipeline_stage_assignment([0, 1, 2])
    assert_same(train(model, 8), train(make_stock(make), 16))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_in_stages(optimizer):
    assert_same_in_stages(network(optimizer))


def test_no_update_is_counted_where_all_weights_are_frozen():
    assert_same_in_stages(network("nadam", frozen=["first", "second"]))
