"""Random small convolutional networks, and random ways to divide a weight update."""

import warnings

import keras
import numpy as np
import pytest
from convoy.engine.step import shard_state
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers

from .side_by_side import assert_same, make_convoy, make_stock, state

UPDATE, UPDATES, SHAPE = 16, 3, (9, 9, 2)


@st.composite
def networks(draw):
    """Draw a network without batch normalisation, whose update of parts is that of the whole."""
    blocks = draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "kind": st.sampled_from(["plain", "depthwise", "residual", "grouped"]),
                    "filters": st.sampled_from([2, 4]),
                    "kernel": st.sampled_from([1, 2, 3]),
                    "strides": st.sampled_from([1, 2]),
                    "padding": st.sampled_from(["same", "valid"]),
                    "activation": st.sampled_from(["tanh", "relu", "silu"]),
                    "pool": st.sampled_from([None, "max", "average"]),
                }
            ),
            min_size=1,
            max_size=3,
        )
    )
    return blocks, draw(st.sampled_from(["flatten", "average"])), draw(st.integers(1, 2))


def build(network):
    blocks, head, outputs = network
    x = inputs = keras.Input(SHAPE)
    for block in blocks:
        x = _block(x, **block)
    x = layers.Flatten()(x) if head == "flatten" else layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, [layers.Dense(3, "softmax")(x) for _ in range(outputs)])


def _block(x, kind, filters, kernel, strides, padding, activation, pool):
    if min(x.shape[1:3]) < kernel:
        kernel = 1
    convolution = {"kernel_size": kernel, "strides": strides, "padding": padding}
    if kind == "depthwise":
        y = layers.DepthwiseConv2D(**convolution)(x)
    elif kind == "grouped":
        y = layers.Conv2D(filters, groups=2, **convolution)(x)
    elif kind == "residual":
        y = layers.Conv2D(x.shape[-1], kernel, padding="same")(x)
        y = layers.Add()([x, y])
    else:
        y = layers.Conv2D(filters, **convolution)(x)
    y = layers.Activation(activation)(y)
    if pool and min(y.shape[1:3]) >= 2:
        y = (layers.MaxPooling2D if pool == "max" else layers.AveragePooling2D)(2)(y)
    return y


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "nesterov": lambda: keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True),
    "clipped": lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.5),
}

splits = st.fixed_dictionaries(
    {
        "devices": st.sampled_from([1, 2, 4]),
        "gradient_accumulation": st.sampled_from([1, 2, 4]),
        "batch": st.sampled_from(["replica", "global"]),
        "data_budget": st.sampled_from([None, 0]),
        "reduction_bucket": st.sampled_from([0, 64, 1 << 20]),
        "shard": st.sampled_from([None, "optimizer", "weights"]),
    }
)


def check(network, optimizer, split, whole_epoch):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(UPDATE * UPDATES, *SHAPE)).astype("float32")
    y = rng.integers(0, 3, len(x)).astype("int32")

    def make(steps):
        model = build(network)
        loss = ["sparse_categorical_crossentropy"] * len(model.outputs)
        model.compile(OPTIMIZERS[optimizer](), loss, steps_per_execution=steps)
        return model

    def learn(model, batch_size):
        targets = [y] * len(model.outputs)
        history = model.fit(x, targets, batch_size=batch_size, epochs=2, verbose=0).history
        with warnings.catch_warnings():
            # Batches of five are told to cost more than they need to, where replicas divide them.
            warnings.filterwarnings("ignore", message="A batch of .* does not divide over")
            return history, model.predict(x, batch_size=5, verbose=0), state(model)

    expected = learn(make_stock(make), UPDATE)
    parts = split["devices"] * split["gradient_accumulation"]
    is_global = split["batch"] == "global"
    steps = UPDATES * (1 if is_global else split["gradient_accumulation"]) if whole_epoch else 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_state, "REPLICATED_ELEMENTS", 0)
        model = make_convoy(make, steps, **split)
        actual = learn(model, UPDATE if is_global else UPDATE // parts)
    assert_same(actual, expected)


def examples(count):
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


@examples(6)
@given(networks(), st.sampled_from(sorted(OPTIMIZERS)), splits, st.booleans())
def test_a_few(network, optimizer, split, whole_epoch):
    check(network, optimizer, split, whole_epoch)


@pytest.mark.slow
@examples(60)
@given(networks(), st.sampled_from(sorted(OPTIMIZERS)), splits, st.booleans())
def test_many(network, optimizer, split, whole_epoch):
    check(network, optimizer, split, whole_epoch)
