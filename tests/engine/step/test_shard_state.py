import convoy
import keras
import numpy as np
import pytest
from convoy import strategy as strategies
from convoy.engine.observer import Observer
from convoy.engine.step import shard_state
from keras import layers
from tests.equivalence.side_by_side import (
    HALF_TOLERANCE,
    assert_equivalent,
    assert_same,
    make_convoy,
    make_stock,
    state,
)

pytestmark = pytest.mark.integration

SHARDED = ("optimizer", "weights")


@pytest.fixture(autouse=True)
def small_weights_are_sharded(monkeypatch):
    monkeypatch.setattr(shard_state, "REPLICATED_ELEMENTS", 15)


@pytest.fixture
def little_memory(monkeypatch):
    """Let weights be gathered for each micro-batch, as if all of them did not fit."""
    monkeypatch.setattr(strategies, "GATHERED_PART", 1 << 60)


def network(steps=1, optimizer="adam"):
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(3, "softmax")]
    )
    model.compile(
        keras.optimizers.get(optimizer),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps,
    )
    return model


@pytest.fixture
def data(rng):
    return rng.normal(size=(96, 6)).astype("float32"), rng.integers(0, 3, 96).astype("int32")


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
}


def compare(data, make, shard, **strategy):
    stock = make_stock(make)
    expected = stock.fit(*data, batch_size=24, epochs=2, verbose=0).history, state(stock)
    model = make_convoy(make, 4, devices=4, gradient_accumulation=2, shard=shard, **strategy)
    actual = model.fit(*data, batch_size=3, epochs=2, verbose=0).history, state(model)
    assert_same(actual, expected)
    return model


@pytest.mark.parametrize("shard", SHARDED)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_that_of_stock_keras(data, optimizer, shard):
    compare(data, lambda steps: network(steps, OPTIMIZERS[optimizer]()), shard)


def convolutions(steps=1):
    """Return a network of which one layer's weights are used twice."""
    inputs = keras.Input((6,))
    x = layers.Reshape((6, 1))(inputs)
    shared = layers.Conv1D(8, 3, padding="same", activation="tanh", name="first")
    x = layers.Conv1D(8, 3, padding="same", name="second", kernel_regularizer="l2")(shared(x))
    x = layers.GlobalAveragePooling1D()(layers.Activation("tanh", name="third")(x))
    model = keras.Model(inputs, layers.Dense(3, "softmax")(x))
    model.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", steps_per_execution=steps
    )
    return model


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("checkpointing", [None, ["second", "third"]], ids=str)
def test_weights_that_are_gathered_for_each_micro_batch_give_the_same(data, checkpointing):
    model = compare(data, convolutions, "weights", activation_checkpointing=checkpointing)
    assert programs_of(model).shards.by_micro_batch


def programs_of(model):
    return model.set_gradient_accumulation.__self__.host_loop.runners.get("train")


@pytest.mark.parametrize("checkpointing", [["second", "third"]], ids=str)
def test_activation_checkpointing(data, checkpointing):
    model = compare(data, convolutions, "weights", activation_checkpointing=checkpointing)
    assert not programs_of(model).shards.by_micro_batch


def masked(steps=1):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Embedding(16, 8, mask_zero=True),
            layers.LSTM(8, return_sequences=True),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile(
        "sgd",
        "sparse_categorical_crossentropy",
        weighted_metrics=["accuracy"],
        steps_per_execution=steps,
    )
    return model


@pytest.mark.usefixtures("little_memory")
def test_masks_of_outputs_reach_metrics(rng):
    x = rng.integers(0, 4, (96, 6)).astype("int32")
    compare((x, rng.integers(0, 3, (96, 6)).astype("int32")), masked, "weights")


@pytest.mark.parametrize("gathered", ["once", "for each micro-batch"])
@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_with_loss_scaling(data, precision, gathered, request):
    if gathered != "once":
        request.getfixturevalue("little_memory")

    def learn(**strategy):
        model = make_convoy(
            network, 4, devices=4, precision=precision, loss_scale=128.0, **strategy
        )
        return model.fit(*data, batch_size=6, epochs=2, verbose=0).history, state(model)

    assert_same(learn(shard="weights"), learn(), tolerance=HALF_TOLERANCE[precision])


@pytest.mark.usefixtures("little_memory")
def test_an_automatic_loss_scale_counts_the_gradients_of_all_weights(data):
    def learn(**strategy):
        scale = convoy.AutomaticLossScale(initial=2.0**10, period=3)
        model = make_convoy(network, 4, devices=4, loss_scale=scale, **strategy)
        return model.fit(*data, batch_size=6, epochs=2, verbose=0).history, state(model)

    assert_same(learn(shard="weights"), learn())


def shapes_on_devices(variable):
    return {shard.data.shape for shard in variable.value.addressable_shards}


def test_each_replica_stores_a_shard_of_the_optimizer_state(data):
    model = make_convoy(network, 4, devices=4, shard_optimizer_state=True)
    model.fit(*data, batch_size=6, verbose=0)
    moments = [v for v in model.optimizer.variables if v.shape == (6, 8)]
    assert len(moments) == 2
    for moment in moments:
        assert shapes_on_devices(moment) == {(6, 2)}
    for weight in model.trainable_variables:
        assert shapes_on_devices(weight) == {weight.shape}


def test_each_replica_stores_a_shard_of_the_weights(data):
    model = make_convoy(network, 4, devices=4, shard="weights")
    model.fit(*data, batch_size=6, validation_data=data, verbose=0)
    model.evaluate(*data, verbose=0)
    model.predict(data[0], verbose=0)
    kernel, bias, *_ = model.trainable_variables
    assert shapes_on_devices(kernel) == {(6, 2)}
    assert shapes_on_devices(bias) == {(8,)}  # too small
    assert {shapes_on_devices(v).pop() for v in model.optimizer.variables if v.ndim == 2} == {
        (6, 2),
        (2, 3),
    }


class Reads(keras.callbacks.Callback):
    """Reads all weights after every device call, and changes one of them in the second epoch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.model.get_weights())

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            kernel, *others = self.model.get_weights()
            self.model.set_weights([kernel * 0.5, *others])


@pytest.mark.parametrize("shard", SHARDED)
def test_callbacks_evaluate_predict_and_a_saved_model_see_all_weights(data, shard, tmp_path):
    def run(model):
        reads, file = Reads(), tmp_path / f"{model.name}.keras"
        fitted = model.fit(
            *data, batch_size=24, epochs=3, validation_data=data, verbose=0, callbacks=[reads]
        )
        model.save(file)
        loaded = keras.models.load_model(file)
        return (
            fitted.history,
            reads.seen,
            model.evaluate(*data, batch_size=24, verbose=0),
            model.predict(data[0], batch_size=20, verbose=0),
            model.get_weights(),
            np.asarray(model(data[0][:2])),
            loaded.get_weights(),
            [np.asarray(variable.value) for variable in loaded.optimizer.variables],
        )

    assert_equivalent(network, run, steps=1, devices=4, batch="global", shard=shard)


@pytest.mark.parametrize("shard", SHARDED)
def test_an_incomplete_last_batch(data, shard):
    def run(model):
        x, y = (array[:90] for array in data)
        return model.fit(x, y, batch_size=24, epochs=2, verbose=0).history

    assert_equivalent(network, run, devices=4, batch="global", shard=shard)


def test_gradients_are_summed_if_the_strategy_says_so(data):
    def learn(**strategy):
        model = make_convoy(network, 4, devices=4, reduction="sum", **strategy)
        return model.fit(*data, batch_size=6, verbose=0).history, state(model)

    assert_same(learn(shard="weights"), learn())


def test_unknown_words_and_contradictions_are_refused():
    with pytest.raises(ValueError, match="shard='gradients' is unknown"):
        convoy.Strategy(2, shard="gradients")
    with pytest.raises(ValueError, match="was passed with shard_optimizer_state=True"):
        convoy.Strategy(2, shard="weights", shard_optimizer_state=True)
    assert convoy.Strategy(2, shard_optimizer_state=True).execution_config.shard == "optimizer"


def test_collectives_of_a_weight_update(data):
    """One exchange for each weight; for each micro-batch only where memory is short."""
    counts = collectives(data, gradient_accumulation=2)
    assert counts == {"all_gather": 2, "reduce_scatter": 2}


@pytest.mark.usefixtures("little_memory")
def test_collectives_of_a_micro_batch(data):
    """The backward pass does not read the first weight: there is no gradient of the inputs."""
    counts = collectives(data, gradient_accumulation=1)
    assert counts == {"all_gather": 2 + 1, "reduce_scatter": 2}


def collectives(data, **strategy):
    """Return how often each kind of exchange of weights occurs in the training program."""
    model = make_convoy(network, 4, devices=4, shard="weights", **strategy)
    texts = []
    model.set_gradient_accumulation.__self__.engine_model.strategy.observer = Lowered(texts)
    model.fit(*data, batch_size=6, verbose=0)
    kinds = "all_gather", "reduce_scatter"
    return {kind: texts[0].count(f'"stablehlo.{kind}"') for kind in kinds}


class Lowered(Observer):
    """Keeps the text of programs as they are lowered."""

    def __init__(self, texts):
        self.texts = texts

    def program(self, name, program, varying=None):
        del name, varying

        def run(*arguments):
            self.texts.append(program.lower(*arguments).as_text())
            return program(*arguments)

        return run
