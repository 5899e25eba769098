"""A model in stages learns what it learns in one piece, and what stock Keras learns.

Without batch normalisation that is stock Keras's update of one big batch; with it, what the model
in one piece learns from the same micro-batches.
"""

import functools
import itertools

import convoy
import keras
import numpy as np
import pytest
from convoy.pipeline import NAMES
from convoy.pipeline.stages import calls_of
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from .side_by_side import assert_same, make_convoy, make_stock, state
from .test_random_networks import SHAPE, build, examples, networks

slow = pytest.mark.slow
# Two samples at least in each of 2 x 16 micro-batches: batch normalisation of one, four values at
# the end of ResNet-8, turns the last bit of a weight into 1e-5 of a prediction, in one piece, too.
UPDATE, UPDATES, DEVICES = 64, 2, 4


def resnet8(steps):
    """The CIFAR network with a third of its filters, at a quarter of its size."""

    def block(x, filters, strides):
        skip = x
        for number in range(2):
            x = layers.Conv2D(
                filters, 3, strides if not number else 1, padding="same", use_bias=False
            )(x)
            x = layers.BatchNormalization(momentum=0.8)(x)
            x = layers.ReLU()(x) if not number else x
        if strides > 1:
            skip = layers.Conv2D(filters, 1, strides, use_bias=False)(skip)
            skip = layers.BatchNormalization(momentum=0.8)(skip)
        return layers.ReLU()(layers.Add()([x, skip]))

    x = inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(6, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))
    for filters, strides in ((6, 1), (12, 2), (24, 2)):
        x = block(x, filters, strides)
    x = layers.GlobalAveragePooling2D()(x)
    return compiled(keras.Model(inputs, layers.Dense(3, "softmax")(x)), steps)


def unet(steps):
    """Two levels down and up again, with a long skip at each."""

    def convolve(x, filters):
        return layers.Conv2D(filters, 3, padding="same", activation="tanh")(x)

    x = inputs = keras.Input((8, 8, 3))
    skips = []
    for filters in (4, 6):
        skips.append(convolve(x, filters))
        x = layers.MaxPooling2D()(skips[-1])
    x = convolve(x, 8)
    for skip in reversed(skips):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
        x = convolve(x, skip.shape[-1])
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(3, 1)(x))
    return compiled(keras.Model(inputs, layers.Softmax()(x)), steps)


def several(steps):
    """Two inputs, read by an early and by a late layer, and two outputs."""
    image, extra = keras.Input((8, 8, 3), name="image"), keras.Input((4,), name="extra")
    x = layers.Conv2D(4, 3, activation="tanh")(image)
    x = layers.Conv2D(4, 3, activation="tanh")(x)
    x = layers.Dense(8, "tanh")(layers.Flatten()(x))
    one = layers.Dense(3, "softmax", name="one")(x)
    x = layers.Dense(8, "tanh")(layers.Concatenate()([x, extra]))
    return compiled(
        keras.Model([image, extra], [one, layers.Dense(3, "softmax", name="two")(x)]), steps
    )


def compiled(model, steps):
    outputs = len(model.outputs)
    loss = ["sparse_categorical_crossentropy"] * outputs
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        loss if outputs > 1 else loss[0],
        metrics=[["accuracy"]] * outputs if outputs > 1 else ["accuracy"],
        steps_per_execution=steps,
    )
    return model


MODELS = {"resnet8": resnet8, "unet": unet, "several": several}


@functools.cache
def samples():
    rng = np.random.default_rng(4)
    y = rng.integers(0, 3, UPDATE * UPDATES).astype("int32")
    x = rng.normal(size=(len(y), 8, 8, 3)).astype("float32")
    x[np.arange(len(y)), y, y] += 2.0
    return x, rng.normal(size=(len(y), 4)).astype("float32"), y


def learn(model, batch_size):
    x, extra, y = samples()
    x = [x, extra] if len(model.inputs) > 1 else x
    y = [y, y] if len(model.outputs) > 1 else y
    history = model.fit(x, y, batch_size=batch_size, epochs=2, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=8, verbose=0)
    return history, evaluated, model.predict(x, batch_size=8, verbose=0), state(model)


@functools.cache
def expected(name, replicas, accumulation):
    """What the model in one piece learns; of stock Keras where that is the same."""
    if name != "resnet8":
        return learn(make_stock(MODELS[name]), UPDATE)
    model = make_convoy(
        resnet8, UPDATES * accumulation, devices=replicas, gradient_accumulation=accumulation
    )
    return learn(model, UPDATE // (replicas * accumulation))


def check(name, stages, schedule, accumulation, replicas):
    # Every result of one piece is the same for models without batch normalisation.
    key = (replicas, accumulation) if name == "resnet8" else (1, 1)
    known = expected(name, *key)
    width = DEVICES // replicas
    model = make_convoy(
        MODELS[name],
        UPDATES * accumulation,
        devices=replicas * min(stages, width),
        gradient_accumulation=accumulation,
    )
    calls = len(calls_of(model))
    model.set_pipeline_stage_assignment([number * stages // calls for number in range(calls)])
    mapping = [stage % width for stage in range(stages)]
    model.set_pipelining_options(schedule=schedule, device_mapping=mapping)
    assert_same(learn(model, UPDATE // (replicas * accumulation)), known)


def combinations():
    """Every model, number of stages and schedule; accumulation and replicas take turns."""
    turns = itertools.cycle([(4, 1), (2, 2), (16, 1), (1, 1), (8, 2), (1, 2), (8, 1), (16, 2)])
    return [
        (*case, *next(turns))
        for case in itertools.product(MODELS, (2, 3, 4), NAMES)
        for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("name", "stages", "schedule", "accumulation", "replicas"),
    [("unet", 3, "zero-bubble", 4, 1)],
)
def test_a_few(name, stages, schedule, accumulation, replicas):
    check(name, stages, schedule, accumulation, replicas)


@slow
@pytest.mark.parametrize(("name", "stages", "schedule", "accumulation", "replicas"), combinations())
def test_many(name, stages, schedule, accumulation, replicas):
    check(name, stages, schedule, accumulation, replicas)


@slow
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("accumulation", range(1, 17))
def test_every_number_of_micro_batches(accumulation, replicas):
    rng = np.random.default_rng(0)
    update = 2 * replicas * accumulation
    x = rng.normal(size=(2 * update, 4)).astype("float32")

    def make(steps):
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(4, "tanh"), layers.Dense(2, name="b")]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=steps)
        return model

    def train(model, batch_size):
        return model.fit(x, x[:, :2], batch_size=batch_size, verbose=0).history, state(model)

    model = make_convoy(
        make, 2 * accumulation, devices=2 * replicas, gradient_accumulation=accumulation
    )
    model.set_pipeline_stage_assignment([0, 1])
    assert_same(train(model, 2), train(make_stock(make), update))


@st.composite
def pipelines(draw):
    """Draw a network, a cut, a mapping, a schedule, and a division of the batch."""
    network = draw(networks())
    stages = draw(st.integers(2, 4))
    return {
        "network": network,
        "places": draw(st.lists(st.floats(0, 1), min_size=stages - 1, max_size=stages - 1)),
        "width": draw(st.integers(1, 2)),
        "schedule": draw(st.sampled_from(list(NAMES))),
        "accumulation": draw(st.sampled_from([1, 2, 4])),
        "replicas": draw(st.integers(1, 2)),
        "activation_checkpointing": draw(st.booleans()),
        "budget": draw(st.sampled_from([None, 0])),
    }


def check_random(
    network, places, width, schedule, accumulation, replicas, activation_checkpointing, budget
):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(16, *SHAPE)).astype("float32")
    y = rng.integers(0, 3, len(x)).astype("int32")

    def make(steps):
        model = build(network)
        loss = ["sparse_categorical_crossentropy"] * len(model.outputs)
        model.compile(keras.optimizers.SGD(0.05), loss, steps_per_execution=steps)
        return model

    def train(model, batch_size):
        targets = [y] * len(model.outputs)
        history = model.fit(x, targets, batch_size=batch_size, epochs=2, verbose=0).history
        return history, model.predict(x, batch_size=4, verbose=0), state(model)

    known = train(make_stock(make), 8)
    model = make_convoy(
        make,
        2 * accumulation,
        devices=replicas * width,
        gradient_accumulation=accumulation,
        data_budget=budget,
    )
    count = len(calls_of(model))
    cuts = sorted({1 + int(place * (count - 2)) for place in places} if count > 1 else ())
    stages = len(cuts) + 1
    model.set_pipeline_stage_assignment([sum(n >= cut for cut in cuts) for n in range(count)])
    mapping = [stage % width for stage in range(stages)]
    model.set_pipelining_options(
        schedule=schedule, device_mapping=mapping, activation_checkpointing=activation_checkpointing
    )
    assert_same(train(model, 8 // (replicas * accumulation)), known)


@examples(2)
@given(pipelines())
def test_a_few_random_ones(drawn):
    check_random(**drawn)


@slow
@examples(40)
@given(pipelines())
def test_many_random_ones(drawn):
    check_random(**drawn)


class Subclassed(keras.Model):
    """Stages in `call`, with a skip over one of them, and layers with a mind of their own."""

    def __init__(self, normalises):
        super().__init__()
        self.stem = layers.Conv2D(4, 3, padding="same")
        self.norm = layers.BatchNormalization(momentum=0.8) if normalises else None
        self.frozen = layers.BatchNormalization()
        self.middle = layers.Conv2D(4, 3, padding="same", activation="tanh")
        self.idle = layers.Dropout(0.5)
        self.pool = layers.GlobalAveragePooling2D()
        self.head = layers.Dense(3, "softmax", kernel_regularizer="l2")

    def call(self, inputs, training=None):
        with convoy.PipelineStage(0):
            x = self.stem(inputs)
            if self.norm is not None:
                x = self.norm(x, training=training)
            x = skip = keras.ops.tanh(x)
        with convoy.PipelineStage(1):
            x = self.middle(self.frozen(x, training=False))
        with convoy.PipelineStage(2):
            x = self.idle(x, training=False)
            return self.head(self.pool(x + 0.5 * skip))


class Nesting(keras.Model):
    """A model around one that is in stages."""

    def __init__(self, normalises):
        super().__init__()
        self.inner = Subclassed(normalises)

    def call(self, inputs, training=None):
        return self.inner(inputs, training=training)


class Untold(Nesting):
    """Is not told about training, and neither are its layers."""

    def call(self, inputs):
        return self.inner(inputs)


class Frozen(Nesting):
    """Tells its layers something else than it is told."""

    def call(self, inputs, training=None):
        return self.inner(inputs, training=False)


def subclassed(steps, normalises=False, kind=Subclassed):
    model = kind(normalises)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps,
    )
    return model


def check_subclassed(schedule, accumulation, replicas, normalises, kind=Subclassed):
    x, _, y = samples()

    def train(model, batch_size):
        history = model.fit(x, y, batch_size=batch_size, epochs=2, verbose=0).history
        evaluated = model.evaluate(x, y, batch_size=8, verbose=0)
        return history, evaluated, model.predict(x, batch_size=8, verbose=0), state(model)

    def make(steps):
        return subclassed(steps, normalises, kind)

    micro_batch, steps = UPDATE // (replicas * accumulation), UPDATES * accumulation
    if normalises:
        whole = make_convoy(make, steps, devices=replicas, gradient_accumulation=accumulation)
        whole(x[:1])
        whole.reset_pipeline_stage_assignment()
        known = train(whole, micro_batch)
    else:
        known = train(make_stock(make), UPDATE)
    model = make_convoy(make, steps, devices=2 * replicas, gradient_accumulation=accumulation)
    model.set_pipelining_options(schedule=schedule, device_mapping=[0, 1, 1])
    assert_same(train(model, micro_batch), known)
    assert max(model.get_pipeline_stage_assignment()) == 2


@pytest.mark.parametrize("normalises", [False, pytest.param(True, marks=slow)])
@pytest.mark.parametrize("kind", [Subclassed, Nesting, Untold, Frozen])
def test_a_subclassed_model(kind, normalises):
    check_subclassed("1f1b", 4, 2, normalises, kind)


@slow
@pytest.mark.parametrize("normalises", [False, True])
@pytest.mark.parametrize(("accumulation", "replicas"), [(1, 1), (4, 1), (8, 2)])
@pytest.mark.parametrize("schedule", NAMES)
def test_a_subclassed_model_in_every_schedule(schedule, accumulation, replicas, normalises):
    check_subclassed(schedule, accumulation, replicas, normalises)
