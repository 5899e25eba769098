"""Callbacks: order, and state that checkpoints save."""

import keras
import pytest
from convoy import keras_bridge


def test_callbacks_hear_batches_in_order():
    heard = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: heard.append(b))
    callback.async_safe = True
    callbacks = keras_bridge.Callbacks([callback])
    callbacks.on_train_begin()
    for step in range(200):
        callbacks.on_train_batch_end(step, {})
    callbacks.on_train_end()
    assert heard == list(range(200))


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.History(),
        keras.callbacks.EarlyStopping(),
        keras.callbacks.ReduceLROnPlateau(),
        keras.callbacks.ModelCheckpoint("model.keras", save_best_only=True),
        keras.callbacks.SwapEMAWeights(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_keep_their_state_where_checkpoints_look_for_it(callback):
    callback.on_train_begin()
    names = keras_bridge.callback_state_names(callback)
    assert names
    assert all(hasattr(callback, name) for name in names)
