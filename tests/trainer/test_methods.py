"""The methods of a prepared model, where their arguments choose between paths of the engine."""

import convoy
import keras
import numpy as np
import pytest
from keras import layers

X = np.arange(32, dtype="float32").reshape(8, 4) / 32
Y = np.eye(8, 2, dtype="float32")


def prepared(kind=keras.Sequential, **compilation):
    with convoy.Strategy(devices=1).scope():
        model = kind([keras.Input((4,)), layers.Dense(2, activation="softmax")])
        model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"], **compilation)
    return model


def test_fit_validates_by_a_models_own_evaluate():
    calls = []

    class Own(keras.Sequential):
        def evaluate(self, x=None, y=None, **kwargs):
            calls.append((len(x), kwargs["batch_size"], kwargs["steps"]))
            return {"own": 7.0}

    model = prepared(Own)
    history = model.fit(
        X, Y, 4, epochs=2, verbose=0, validation_data=(X[:6], Y[:6]), validation_batch_size=3
    )
    assert history.history["val_own"] == [7.0, 7.0]
    assert calls == [(6, 3, None)] * 2


def test_fit_holds_a_part_of_arrays_out():
    seen = []

    class Shapes(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            seen.append(batch)

    history = prepared().fit(
        X, Y, 2, verbose=0, validation_split=0.25, validation_batch_size=1, callbacks=[Shapes()]
    )
    assert seen == [0, 1]
    assert {"loss", "val_loss", "val_accuracy"} <= set(history.history)


def test_evaluate_refuses_an_argument_that_it_does_not_have():
    with pytest.raises(ValueError, match=r"^evaluate\(\) takes no argument batches\.$"):
        prepared().evaluate(X, Y, batches=2)


def test_train_on_batch_takes_one_kind_of_weights():
    with pytest.raises(ValueError, match="Both `sample_weight` and `class_weight`"):
        prepared().train_on_batch(X, Y, sample_weight=np.ones(8), class_weight={0: 1.0, 1: 2.0})


def test_class_weights_of_a_batch_are_weights_of_its_samples():
    weights = np.where(Y[:, 0] == 1, 3.0, 1.0).astype("float32")
    keras.utils.set_random_seed(1)
    by_class = prepared().train_on_batch(X, Y, class_weight={0: 3.0, 1: 1.0})
    keras.utils.set_random_seed(1)
    by_sample = prepared().train_on_batch(X, Y, sample_weight=weights)
    np.testing.assert_allclose(by_class, by_sample, rtol=1e-6)


@pytest.mark.parametrize("method", ["evaluate", "test_on_batch", "train_on_batch"])
def test_results_are_a_list_in_kerass_order_or_a_dict(method):
    model = prepared()
    named = getattr(model, method)(X, Y, return_dict=True)
    assert list(named) == ["accuracy", "loss"]
    model = prepared()
    listed = getattr(model, method)(X, Y)
    assert len(listed) == 2
    assert all(isinstance(value, float) for value in listed)


def test_outputs_can_be_written_to_and_are_of_all_samples():
    model = prepared()
    whole, batch = model.predict(X, 3, verbose=0), model.predict_on_batch(X)
    np.testing.assert_allclose(whole, batch, rtol=1e-6)
    for outputs in (whole, batch):
        outputs[0] = 0.0


def test_a_list_of_callbacks_of_keras_is_used_as_it_is():
    model = prepared()
    counted = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))
    epochs = []
    given = keras.callbacks.CallbackList([counted], add_history=True, model=model, epochs=2)
    assert model.fit(X, Y, epochs=2, callbacks=given) is model.history
    assert epochs == [0, 1]


def test_automatic_steps_are_kept_from_kerass_compilation():
    model = prepared(steps_per_execution="auto")
    assert model.steps_per_execution == 1
    model.compile("sgd", "categorical_crossentropy", steps_per_execution=3)
    assert model.steps_per_execution == 3
    with pytest.raises(ValueError, match="steps_per_execution=0 is not a number of steps"):
        model.compile("sgd", "categorical_crossentropy", steps_per_execution=0)
