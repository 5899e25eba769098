"""Steps that a model defines itself run in the device loop, with the results of stock Keras."""

import jax
import keras
import numpy as np
import pytest
from convoy import cpu
from convoy.engine.step import shard_state
from tests import parts

from .side_by_side import (
    Recorder,
    assert_equivalent,
    assert_same,
    make_convoy,
    make_stock,
    state,
)

REPLICAS = {"devices": 2, "batch": "global"}


class OwnTrainStep(keras.Model):
    """The stateless form that Keras documents for JAX, with a metric of its own."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.dropout = keras.layers.Dropout(0.2)
        self.out = keras.layers.Dense(1)
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    def call(self, x, training=False):
        return self.out(self.dropout(self.hidden(x), training=training))

    def forward(self, trainable, non_trainable, x, y):
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
        # Not a mean over samples: a part of the batch would give another gradient.
        spread = keras.ops.std(y_pred)
        return keras.ops.mean((y - y_pred) ** 2) + 0.1 * spread, (y_pred, non_trainable)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, y = data
        gradient = jax.value_and_grad(self.forward, has_aux=True)
        (loss, (y_pred, non_trainable)), gradients = gradient(trainable, non_trainable, x, y)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        mapping = list(zip(self.metrics_variables, metrics, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            self.error.update_state(y, y_pred)
            logs = {"loss": loss, "error": self.error.result()}
        metrics = [scope.get_current_value(variable) for variable in self.metrics_variables]
        return logs, (trainable, non_trainable, optimizer, metrics)


class ExtendedSteps(keras.Sequential):
    """Steps that call those of Keras and add something."""

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return logs | {"largest": keras.ops.max(data[0]), "constant": 2.0}, state

    def test_step(self, state, data):
        logs, state = super().test_step(state, data)
        return {name: value + 1 for name, value in logs.items()}, state

    def predict_step(self, state, data):
        outputs, non_trainable = super().predict_step(state, data)
        return {"twice": 2 * outputs, "mean": keras.ops.mean(outputs, axis=1)}, non_trainable


def own(steps):
    model = OwnTrainStep()
    model.compile("adam", steps_per_execution=steps)
    return model


def extended(steps):
    model = ExtendedSteps(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=steps)
    return model


def everything(table, **fit):
    x, y, _ = table

    def run(model):
        recorder = Recorder(batches=False)
        settings = {"batch_size": 20, "epochs": 3, "verbose": 0, "callbacks": [recorder]} | fit
        history = model.fit(x, y, validation_data=(x, y), **settings).history
        return (
            history,
            recorder.calls,
            model.evaluate(x, y, batch_size=40, verbose=0, return_dict=True),
            model.predict(x, batch_size=40, verbose=0),
        )

    return run


@pytest.mark.parametrize("strategy", [{}, REPLICAS], ids=["one device", "two replicas"])
@pytest.mark.parametrize("make", [own, extended])
def test_a_step_of_the_model(table, make, strategy):
    run = everything(table)
    if make is own:

        def run(model):
            x, y, _ = table
            recorder = Recorder(batches=False)
            settings = {"batch_size": 20, "epochs": 3, "verbose": 0, "callbacks": [recorder]}
            return model.fit(x, y, **settings).history, recorder.calls

    assert_equivalent(make, run, steps=4, **strategy)


class ConvolutionalSteps(keras.Model):
    """Keras's own steps, called by overrides, for a model with the operations that have kernels."""

    def train_step(self, state, data):
        return super().train_step(state, data)

    def test_step(self, state, data):
        return super().test_step(state, data)

    def predict_step(self, state, data):
        return super().predict_step(state, data)


def convolutional(steps):
    layers = keras.layers
    inputs = keras.Input((10, 10, 1))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(2)(layers.ReLU()(x))
    x = layers.DepthwiseConv2D(3, padding="same")(x)
    x = layers.SeparableConv2D(8, 3, activation="relu")(x)
    x = layers.AveragePooling2D(2, 1)(layers.Conv2DTranspose(4, 2, strides=2)(x))
    outputs = layers.Dense(10, activation="softmax")(layers.Flatten()(x))
    model = ConvolutionalSteps(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps,
    )
    return model


@pytest.mark.parametrize("strategy", [{}, REPLICAS], ids=["one device", "two replicas"])
def test_convolutions_in_a_step_of_the_model(images, strategy):
    assert_equivalent(convolutional, everything((*images, None)), steps=4, **strategy)


@parts.needs("the native CPU kernels")
def test_partitioned_convolutions_run_by_native_kernels(images):
    model = make_convoy(convolutional, 2, **REPLICAS)
    cpu.lowering.reset_counts()
    model.fit(*images, batch_size=20, verbose=0)
    lowered = cpu.status().lowered
    assert any(name.startswith("convolution by oneDNN, backward weights") for name in lowered)
    assert "convolution by XLA" not in lowered


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_generator_and_an_incomplete_batch(table):
    x, y, _ = table

    def batches():
        for start in range(0, 110, 25):
            yield x[start : start + 25][: 110 - start], y[start : start + 25][: 110 - start]

    def run(model):
        return model.fit(batches(), shuffle=False, verbose=0).history

    assert_equivalent(own, run, steps=2)


@pytest.mark.parametrize("strategy", [{}, REPLICAS], ids=["one device", "two replicas"])
def test_single_batches(table, strategy):
    x, y, _ = table

    def run(model):
        return (
            model.train_on_batch(x[:40], y[:40], return_dict=True),
            model.test_on_batch(x[:40], y[:40], return_dict=True),
            model.predict_on_batch(x[:40]),
        )

    assert_equivalent(extended, run, **strategy)


@pytest.mark.parametrize("shard", ["optimizer", "weights"])
def test_a_sharded_state(table, shard, monkeypatch):
    monkeypatch.setattr(shard_state, "REPLICATED_ELEMENTS", 0)

    def run(model):
        x, y, _ = table
        return model.fit(x, y, batch_size=20, epochs=2, verbose=0).history

    assert_equivalent(own, run, shard=shard, **REPLICAS)


class Optimizers:
    """Two optimizers, each for its own part of the weights."""

    def __init__(self, parts):
        self.parts = parts
        self.built = False

    def build(self, variables):
        del variables
        for optimizer, network in self.parts:
            optimizer.build(network.trainable_variables)
        self.built = True

    @property
    def variables(self):
        return [variable for optimizer, _ in self.parts for variable in optimizer.variables]

    def scale_loss(self, loss):
        return loss

    def finalize_variable_values(self, variables):
        del variables


class Gan(keras.Model):
    """A generator and a discriminator, trained in turns, each with its optimizer."""

    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.generator = keras.Sequential(
            [keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(6)]
        )
        self.discriminator = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(1)]
        )
        self.seeds = keras.random.SeedGenerator(3)
        self.built = True

    def compile(self, generator, discriminator, **settings):
        super().compile(**settings)
        self.optimizers = [generator, discriminator]
        self.networks = [self.generator, self.discriminator]
        both = Optimizers(list(zip(self.optimizers, self.networks, strict=True)))
        object.__setattr__(self, "optimizer", both)

    def call(self, x):
        return self.discriminator(x)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        split = len(self.generator.trainable_variables)
        own = len(self.optimizers[0].variables)
        seeds = [v is self.seeds.state for v in self.non_trainable_variables].index(True)
        mapping = [(self.seeds.state, non_trainable[seeds])]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            noise = keras.random.normal((x.shape[0], 3), seed=self.seeds)
        non_trainable = list(non_trainable)
        non_trainable[seeds] = scope.get_current_value(self.seeds.state)

        def judged(generator, discriminator):
            made, _ = self.generator.stateless_call(generator, [], noise)
            both = keras.ops.concatenate([x, made])
            return self.discriminator.stateless_call(discriminator, [], both)[0]

        def loss(generator, discriminator, sign):
            logits = judged(generator, discriminator)
            labels = keras.ops.concatenate(
                [keras.ops.ones((x.shape[0], 1)), keras.ops.zeros((x.shape[0], 1))]
            )
            entropy = keras.losses.binary_crossentropy(labels, logits, from_logits=True)
            return sign * keras.ops.mean(entropy)

        generator, discriminator = trainable[:split], trainable[split:]
        d_loss, gradients = jax.value_and_grad(loss, 1)(generator, discriminator, 1.0)
        discriminator, d_state = self.optimizers[1].stateless_apply(
            optimizer[own:], gradients, discriminator
        )
        g_loss, gradients = jax.value_and_grad(loss)(generator, discriminator, -1.0)
        generator, g_state = self.optimizers[0].stateless_apply(
            optimizer[:own], gradients, generator
        )
        logs = {"d_loss": d_loss, "g_loss": g_loss}
        return logs, ([*generator, *discriminator], non_trainable, [*g_state, *d_state], metrics)


def gan(steps):
    model = Gan()
    model.compile(
        keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.02), steps_per_execution=steps
    )
    return model


@pytest.mark.parametrize("strategy", [{}, REPLICAS], ids=["one device", "two replicas"])
def test_several_optimizers(table, strategy):
    def run(model):
        recorder = Recorder(batches=False)
        settings = {"batch_size": 30, "epochs": 3, "verbose": 0, "callbacks": [recorder]}
        return model.fit(table[0], **settings).history, recorder.calls

    assert_equivalent(gan, run, **strategy)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ({"gradient_accumulation": 2}, "gradient_accumulation=2"),
        ({"loss_scale": 4.0}, "loss_scale"),
        ({"stochastic_rounding": "on"}, "stochastic_rounding"),
        ({"activation_checkpointing": "*"}, "activation_checkpointing"),
        ({"devices": 2, "reduction": "sum"}, "reduction='sum'"),
    ],
)
def test_what_needs_the_parts_of_a_step_is_refused(table, strategy, words):
    model = make_convoy(extended, 2, **strategy)
    with pytest.raises(
        ValueError, match=f"overrides train_step, which cannot be divided for {words}"
    ):
        model.fit(table[0], table[1], batch_size=10, verbose=0)


def test_stages_are_refused(table):
    model = make_convoy(extended, 2, devices=2)
    model.set_pipeline_stage_assignment([0, 0, 1])
    with pytest.raises(ValueError, match=r"overrides train_step, .* for pipeline stages"):
        model.fit(table[0], table[1], batch_size=10, verbose=0)


def test_stages_refuse_a_test_step_before_the_first_epoch(table):
    class Tested(keras.Sequential):
        def test_step(self, state, data):
            return super().test_step(state, data)

    def make(steps):
        model = Tested([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    model = make_convoy(make, 2, devices=2)
    model.set_pipeline_stage_assignment([0, 1])
    x, y, _ = table
    model.fit(x, y, batch_size=10, verbose=0)
    before = state(model)
    with pytest.raises(ValueError, match=r"overrides test_step, .* for pipeline stages\. Leave"):
        model.fit(x, y, batch_size=10, validation_data=(x, y), verbose=0)
    assert_same(state(model), before, exact=True)


def test_a_step_that_is_set_on_the_instance(table):
    def make(steps):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps)
        plain = model.train_step

        def train_step(state, data):
            logs, state = plain(state, data)
            return logs | {"ten": 10.0}, state

        object.__setattr__(model, "train_step", train_step)
        return model

    x, y, _ = table
    assert_equivalent(make, lambda model: model.fit(x, y, batch_size=50, verbose=0).history)


def test_callbacks_receive_the_logs_of_the_step(table):
    x, y, _ = table
    seen = {}

    def run(model, name):
        seen[name] = []
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen[name].append((batch, dict(logs)))
        )
        model.fit(x, y, batch_size=30, verbose=0, shuffle=False, callbacks=[callback])
        return state(model)

    expected = run(make_stock(extended), "stock")
    assert_same(run(make_convoy(extended, 1), "convoy"), expected)
    assert_same(seen["convoy"], seen["stock"])
    assert np.isclose(seen["convoy"][0][1]["constant"], 2.0)
