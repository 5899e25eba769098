import keras
import numpy as np
import pytest
from convoy.engine.step.activation_checkpointing import segments_of
from keras import layers
from tests.equivalence.side_by_side import assert_same, make_convoy, state

pytestmark = pytest.mark.integration


class Penalty(layers.Layer):
    """Adds a loss from inside its call."""

    def call(self, inputs):
        self.add_loss(0.01 * keras.ops.mean(inputs**2))
        return inputs


def network(steps=1):
    """Batch norm, dropout, a skip connection and a loss of a layer's own."""
    x = inputs = keras.Input((8, 8, 3), name="image")
    for block in range(3):
        shortcut = layers.Conv2D(8, 1, name=f"block{block}_shortcut")(x)
        x = layers.Conv2D(8, 3, padding="same", use_bias=False, name=f"block{block}_conv")(x)
        x = layers.BatchNormalization(momentum=0.8, name=f"block{block}_norm")(x)
        x = layers.Activation("tanh", name=f"block{block}_tanh")(x)
        x = layers.Dropout(0.3, seed=block, name=f"block{block}_dropout")(x)
        x = layers.Add(name=f"block{block}_out")([x, shortcut])
    x = Penalty(name="penalty")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    model = keras.Model(inputs, layers.Dense(3, "softmax", name="head")(x))
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        steps_per_execution=steps,
    )
    return model


@pytest.fixture
def data(rng):
    x = rng.normal(size=(48, 8, 8, 3)).astype("float32")
    return x, rng.integers(0, 3, 48).astype("int32")


def train(data, **strategy):
    model = make_convoy(network, 3, **strategy)
    history = model.fit(*data, batch_size=8, epochs=2, verbose=0).history
    return history, state(model)


@pytest.mark.parametrize(
    "strategy",
    [
        {"activation_checkpointing": ["block1_*"]},
        {"activation_checkpointing": "block?_[cnt]*"},
        {"activation_checkpointing": 20_000},
        {"activation_checkpointing": ["block*"], "devices": 2, "gradient_accumulation": 3},
    ],
)
def test_training_is_the_same(data, strategy):
    plain = {name: value for name, value in strategy.items() if name != "activation_checkpointing"}
    assert_same(train(data, **strategy), train(data, **plain))


def names(segments):
    return [(segment.kept, [call.name for call in segment.calls]) for segment in segments]


def test_named_layers_that_follow_each_other_are_forgotten_together():
    segments = segments_of(network(), ["block1_conv", "block1_norm", "head"], 8)
    assert [n for kept, n in names(segments) if not kept] == [
        ["block1_conv", "block1_norm"],
        ["head"],
    ]


def test_a_model_that_fits_keeps_everything():
    assert all(segment.kept for segment in segments_of(network(), 1 << 30, 8))


def test_less_memory_means_more_runs_cut_where_nothing_else_is_live():
    few, many = (segments_of(network(), budget, 8) for budget in (300_000, 50_000))
    assert 2 == len(few) < len(many)
    for segment in many[:-1]:
        assert not segment.kept
        assert segment.calls[-1].name.endswith(("out", "penalty", "pool"))


def test_a_name_that_no_layer_has_is_refused_with_a_suggestion(data):
    with pytest.raises(ValueError, match=r"'block1_cnov' is not .* mean block1_conv"):
        train(data, activation_checkpointing=["block1_cnov"])


def test_a_model_without_a_graph_is_refused(data):
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = layers.Dense(3)

        def call(self, x):
            return self.head(keras.ops.mean(x, axis=(1, 2)))

    def make(steps):
        model = Subclassed()
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    model = make_convoy(make, activation_checkpointing=1000)
    with pytest.raises(ValueError, match="is a subclassed model, which has no graph of layers"):
        model.fit(data[0], np.zeros((48, 3)), verbose=0)
