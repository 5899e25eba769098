"""The models that are trained on both sides.

They are well conditioned on purpose: rounding differs between the two programs in the last bit,
and some directions blow that up. Adam divides a gradient by its own size, so where the true
gradient is zero (a bias right before batch norm) it makes a full step out of rounding noise:
such layers have no bias here, or train with SGD.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


def momentum(**settings: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9, **settings)


def classifier(steps: Any = 1, **compilation: Any) -> keras.Model:
    """The model for tests in which the model is not the point."""
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(3, "softmax")]
    )
    settings = {"optimizer": momentum(), "metrics": ["accuracy"]}
    settings |= {"loss": "sparse_categorical_crossentropy"}
    model.compile(**(settings | compilation), steps_per_execution=steps)
    return model


def regressor(steps: Any = 1, **compilation: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    settings = {"optimizer": momentum(), "loss": "mse", "metrics": ["mae"]}
    model.compile(**(settings | compilation), steps_per_execution=steps)
    return model


def with_dropout(steps: Any = 1) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, "tanh"),
            layers.Dropout(0.5),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile(
        momentum(),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps,
    )
    return model


def two_by_two(steps: Any = 1, **compilation: Any) -> keras.Model:
    """Two inputs and two outputs, all of them in dicts."""
    inputs = {"left": keras.Input((6,), name="left"), "right": keras.Input((2,), name="right")}
    both = layers.Concatenate()([layers.Dense(8, "tanh")(inputs["left"]), inputs["right"]])
    outputs = {
        "kind": layers.Dense(3, "softmax", name="kind")(both),
        "amount": layers.Dense(1, name="amount")(both),
    }
    model = keras.Model(inputs, outputs)
    settings = {
        "optimizer": momentum(),
        "loss": {"kind": "sparse_categorical_crossentropy", "amount": "mse"},
        "loss_weights": {"kind": 1.0, "amount": 0.5},
        "metrics": {"kind": ["accuracy"], "amount": ["mae"]},
    }
    model.compile(**(settings | compilation), steps_per_execution=steps)
    return model


def two_by_two_data(table: tuple) -> tuple[dict, dict]:
    x, target, classes = table
    return {"left": x, "right": x[:, :2] * 2}, {"kind": classes, "amount": target}
