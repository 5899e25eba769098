"""Every kind of model learns the same under stock Keras and under Convoy."""

import keras
import numpy as np
import pytest
from keras import layers

from . import models
from .models import momentum
from .side_by_side import HALF_TOLERANCE, WAYS, assert_equivalent

CROSSENTROPY = "sparse_categorical_crossentropy"


def learn(x, y, batch_size):
    """Train for several epochs, validate after each, then evaluate and predict."""

    def run(model):
        settings = {"batch_size": batch_size, "verbose": 0}
        history = model.fit(x, y, epochs=4, validation_data=(x, y), **settings)
        return {
            "history": history.history,
            "epochs": history.epoch,
            "evaluate": model.evaluate(x, y, **settings),
            "predict": model.predict(x, **settings),
        }

    return run


# Five steps in an epoch, so with three steps per execution there is a device call of two.
TABLE_BATCH = 30
IMAGES_BATCH = 20


# Kinds of model -------------------------------------------------------------------------------


def mnist_cnn(steps):
    """The CNN of Graphcore's Keras tutorial, made small."""
    inputs = keras.Input((10, 10, 1))
    x = layers.Conv2D(8, kernel_size=(3, 3), activation="relu")(inputs)
    x = layers.MaxPooling2D(pool_size=(2, 2))(x)
    x = layers.Conv2D(16, kernel_size=(3, 3), activation="relu")(x)
    x = layers.MaxPooling2D(pool_size=(2, 2))(x)
    x = layers.Flatten()(x)
    x = layers.Dropout(0.5)(x)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    model.compile(
        "sgd", "categorical_crossentropy", metrics=["accuracy"], steps_per_execution=steps
    )
    return model


def convolutional(steps):
    model = keras.Sequential(
        [
            layers.Conv2D(6, 3, strides=2, padding="same", activation="tanh"),
            layers.DepthwiseConv2D(3, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(momentum(), loss, metrics=["accuracy"], steps_per_execution=steps)
    return model


class Residual(keras.Model):
    """A subclassed model with a skip connection, which is built when it is first called."""

    def __init__(self):
        super().__init__()
        self.widen = layers.Dense(8, "tanh")
        self.inside = layers.Dense(8, "tanh")
        self.drop = layers.Dropout(0.2)
        self.head = layers.Dense(3, "softmax")

    def call(self, inputs, training=False):
        wide = self.widen(inputs)
        return self.head(wide + self.drop(self.inside(wide), training=training))


def subclassed(steps):
    model = Residual()
    model.compile(momentum(), CROSSENTROPY, metrics=["accuracy"], steps_per_execution=steps)
    return model


def nested(steps):
    block = keras.Sequential([layers.Dense(6, "tanh"), layers.Dropout(0.1)], name="block")
    inner_input = keras.Input((6,))
    inner = keras.Model(inner_input, block(inner_input) + inner_input, name="inner")
    inputs = keras.Input((6,))
    # The same inner model twice: its weights are shared.
    outputs = layers.Dense(3, "softmax")(inner(inner(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(momentum(), CROSSENTROPY, metrics=["accuracy"], steps_per_execution=steps)
    return model


def batch_norm_and_dropout(steps):
    model = keras.Sequential(
        [
            keras.Input((10, 10, 1)),
            layers.Conv2D(6, 3, use_bias=False),  # a bias would have no gradient
            layers.BatchNormalization(),
            layers.Activation("tanh"),
            layers.SpatialDropout2D(0.2),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2),
            layers.Dense(10, "softmax"),
        ]
    )
    model.compile(momentum(), CROSSENTROPY, metrics=["accuracy"], steps_per_execution=steps)
    return model


@keras.saving.register_keras_serializable("convoy.tests")
class Sparsity(layers.Layer):
    """Adds a loss of the activations that pass through."""

    def call(self, inputs):
        self.add_loss(0.01 * keras.ops.mean(keras.ops.abs(inputs)))
        return inputs


def add_loss(steps):
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "tanh"), Sparsity(), layers.Dense(3, "softmax")]
    )
    model.compile(momentum(), CROSSENTROPY, metrics=["accuracy"], steps_per_execution=steps)
    return model


def regularised(steps):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-2)),
            layers.Dense(8, "tanh", activity_regularizer=keras.regularizers.L2(1e-2)),
            layers.Dense(3, "softmax", bias_regularizer="l2", kernel_constraint="max_norm"),
        ]
    )
    model.compile(momentum(), CROSSENTROPY, metrics=["accuracy"], steps_per_execution=steps)
    return model


def frozen(steps):
    normalised = layers.BatchNormalization(trainable=False)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "tanh", trainable=False),
            normalised,
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile(momentum(), CROSSENTROPY, metrics=["accuracy"], steps_per_execution=steps)
    return model


ON_TABLE = [models.classifier, subclassed, nested, add_loss, regularised, frozen]
ON_IMAGES = [convolutional, batch_norm_and_dropout]


@pytest.mark.parametrize("make", ON_TABLE)
def test_a_model_of_dense_layers(make, table):
    x, _, y = table
    assert_equivalent(make, learn(x, y, TABLE_BATCH))


@pytest.mark.parametrize("make", ON_IMAGES)
def test_a_model_of_convolutions(make, images):
    assert_equivalent(make, learn(*images, IMAGES_BATCH))


@pytest.mark.parametrize("make", [models.classifier, subclassed, nested])
def test_a_model_that_is_prepared(make, table):
    x, _, y = table
    assert_equivalent(make, learn(x, y, TABLE_BATCH), way="prepare")


@pytest.mark.slow
@pytest.mark.parametrize("make", [add_loss, regularised, frozen])
def test_another_model_that_is_prepared(make, table):
    x, _, y = table
    assert_equivalent(make, learn(x, y, TABLE_BATCH), way="prepare")


@pytest.mark.parametrize(
    "steps", [1, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 1000, "auto"))]
)
def test_the_mnist_cnn_at_every_number_of_steps_per_execution(steps, images):
    # 100 images in batches of 32: the last batch is smaller.
    x, y = images
    assert_equivalent(mnist_cnn, learn(x, keras.utils.to_categorical(y, 10), 32), steps)


def test_the_mnist_cnn_when_it_is_prepared(images):
    x, y = images
    run = learn(x, keras.utils.to_categorical(y, 10), 32)
    assert_equivalent(mnist_cnn, run, way="prepare")


@pytest.mark.parametrize("way", WAYS)
def test_several_inputs_and_outputs_in_dicts(way, table):
    assert_equivalent(
        models.two_by_two, learn(*models.two_by_two_data(table), TABLE_BATCH), way=way
    )


def test_several_inputs_and_outputs_in_lists(table):
    x, target, classes = table

    def make(steps):
        left, right = keras.Input((6,)), keras.Input((6,))
        both = layers.Add()([layers.Dense(8, "tanh")(left), layers.Dense(8)(right)])
        outputs = [layers.Dense(3, "softmax")(both), layers.Dense(1)(both)]
        model = keras.Model([left, right], outputs)
        model.compile(
            momentum(),
            [CROSSENTROPY, "mse"],
            metrics=[["accuracy"], ["mae", "mse"]],
            steps_per_execution=steps,
        )
        return model

    assert_equivalent(make, learn([x, x[::-1].copy()], [classes, target], TABLE_BATCH))


def test_an_output_without_a_loss_is_left_alone(table):
    x, _, classes = table

    def make(steps):
        inputs = keras.Input((6,))
        hidden = layers.Dense(8, "tanh")(inputs)
        model = keras.Model(inputs, [layers.Dense(3, "softmax")(hidden), hidden])
        model.compile(momentum(), [CROSSENTROPY, None], steps_per_execution=steps)
        return model

    assert_equivalent(make, learn(x, [classes, np.zeros((150, 8), "float32")], 50))


def test_dense_layers_are_equal_bit_by_bit(table):
    # A product of matrices is one call of the same library on both sides, and what is left works
    # element by element, so there is no other order to sum in.
    x, _, y = table
    assert_equivalent(models.classifier, learn(x, y, 32), exact=True)


@pytest.mark.slow
def test_a_sequence_model_with_masking():
    rng = np.random.default_rng(0)
    words = rng.integers(1, 20, (100, 6))
    words[:, 4:] *= rng.integers(0, 2, (100, 2))  # zeros are padding
    labels = (words[:, 0] > 10).astype("float32")

    def make(steps):
        model = keras.Sequential(
            [
                layers.Embedding(20, 8, mask_zero=True),
                layers.GRU(8),
                layers.Dense(1, "sigmoid"),
            ]
        )
        model.compile(momentum(), "binary_crossentropy", metrics=["accuracy"])
        model.steps_per_execution = steps
        return model

    assert_equivalent(make, learn(words, labels, 20))


@pytest.mark.slow
def test_random_augmentation_draws_the_same_numbers(images):
    x, y = images

    def make(steps):
        model = keras.Sequential(
            [
                keras.Input((10, 10, 1)),
                layers.GaussianNoise(0.1),
                layers.RandomFlip("horizontal"),
                layers.Flatten(),
                layers.Dense(10, "softmax"),
            ]
        )
        model.compile(momentum(), CROSSENTROPY, steps_per_execution=steps)
        return model

    assert_equivalent(make, learn(x, y, IMAGES_BATCH))


def test_a_layer_that_counts_its_calls(table):
    x, _, y = table

    class Counter(layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(shape=(), dtype="int32", trainable=False, name="calls")

        def call(self, inputs, training=False):
            if training:
                self.calls.assign_add(1)
            return inputs

    def make(steps):
        model = keras.Sequential([keras.Input((6,)), Counter(), layers.Dense(3, "softmax")])
        model.compile(momentum(), CROSSENTROPY, steps_per_execution=steps)
        return model

    assert_equivalent(make, learn(x, y, TABLE_BATCH))


# Optimizers -----------------------------------------------------------------------------------


def decaying():
    return keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=4, decay_rate=0.7)


def staircase():
    return keras.optimizers.schedules.PiecewiseConstantDecay([5, 9], [0.1, 0.05, 0.01])


OPTIMIZERS = {
    "schedule": lambda: keras.optimizers.SGD(decaying()),
    "ema": lambda: momentum(use_ema=True, ema_momentum=0.9),
    "ema every other step": lambda: momentum(use_ema=True, ema_overwrite_frequency=2),
    "global clipnorm": lambda: momentum(global_clipnorm=0.1),
    "accumulation": lambda: momentum(gradient_accumulation_steps=4),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(momentum(), dynamic_growth_steps=3),
    "adam": lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1, amsgrad=True),
}

MORE_OPTIMIZERS = {
    "staircase": lambda: keras.optimizers.SGD(staircase(), momentum=0.9, nesterov=True),
    "clipnorm": lambda: momentum(clipnorm=0.05),
    "clipvalue": lambda: momentum(clipvalue=0.01),
    "fixed loss scale": lambda: momentum(loss_scale_factor=8.0),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-2, centered=True, momentum=0.5),
    "lion": lambda: keras.optimizers.Lion(1e-3),
    "lamb": lambda: keras.optimizers.Lamb(1e-2),
    "adafactor": lambda: keras.optimizers.Adafactor(1e-2),
    "ftrl": lambda: keras.optimizers.Ftrl(1e-2),
    "muon": lambda: keras.optimizers.Muon(1e-2),
}


def train_with(optimizer, table):
    x, _, y = table

    def make(steps):
        return models.classifier(steps, optimizer=optimizer())

    def run(model):
        # No more than training: after an epoch with EMA, stock Keras has weights and averages
        # in the same memory, and loses the averages as soon as it evaluates.
        return model.fit(x, y, batch_size=TABLE_BATCH, epochs=4, verbose=0).history

    assert_equivalent(make, run)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer(name, table):
    train_with(OPTIMIZERS[name], table)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_OPTIMIZERS)
def test_another_optimizer(name, table):
    train_with(MORE_OPTIMIZERS[name], table)


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)]
)
def test_half_precision(policy, table):
    x, _, y = table

    def make(steps):
        keras.config.set_dtype_policy(policy)
        try:
            return models.classifier(steps)
        finally:
            keras.config.set_dtype_policy("float32")

    assert_equivalent(make, learn(x, y, TABLE_BATCH), tolerance=HALF_TOLERANCE[policy])
