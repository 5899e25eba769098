import keras
import numpy as np
import pytest
from keras import layers
from tests.equivalence.side_by_side import assert_same, make_convoy, make_stock, state

pytestmark = pytest.mark.integration


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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_that_of_stock_keras(data, optimizer):
    def make(steps):
        return network(steps, OPTIMIZERS[optimizer]())

    stock = make_stock(make)
    expected = stock.fit(*data, batch_size=24, epochs=2, verbose=0).history, state(stock)
    model = make_convoy(make, 4, devices=4, gradient_accumulation=2, shard_optimizer_state=True)
    actual = model.fit(*data, batch_size=3, epochs=2, verbose=0).history, state(model)
    assert_same(actual, expected)


def test_each_replica_holds_a_share(data):
    model = make_convoy(network, 4, devices=4, shard_optimizer_state=True)
    model.fit(*data, batch_size=6, verbose=0)
    moments = [v for v in model.optimizer.variables if v.shape == (6, 8)]
    assert len(moments) == 2
    for moment in moments:
        assert {shard.data.shape for shard in moment.value.addressable_shards} == {(6, 2)}
    for weight in model.trainable_variables:
        assert {shard.data.shape for shard in weight.value.addressable_shards} == {weight.shape}


def test_evaluate_and_predict_go_on_after_it(data):
    model = make_convoy(network, 4, devices=2, shard_optimizer_state=True)
    model.fit(*data, batch_size=12, epochs=2, validation_data=data, verbose=0)
    assert np.isfinite(model.evaluate(*data, verbose=0)).all()
    assert model.predict(data[0], verbose=0).shape == (96, 3)


def test_weights_and_state_are_saved_whole(data, tmp_path):
    model = make_convoy(network, 4, devices=2, shard_optimizer_state=True)
    model.fit(*data, batch_size=12, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    saved, found = (list(m.optimizer.variables) for m in (model, loaded))
    for a, b in zip(saved, found, strict=True):
        np.testing.assert_array_equal(np.asarray(a.value), np.asarray(b.value))
