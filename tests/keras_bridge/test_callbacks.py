"""Callbacks: order, and state that checkpoints save."""

import re

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


def test_a_progress_bar_counts_the_batches_of_all_replicas(capsys):
    callbacks = keras_bridge.Callbacks(
        None, add_progbar=True, verbose=1, steps=4, epochs=1, batches_per_step=2
    )
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    callbacks.on_train_batch_end(1, {"loss": 1.0})
    callbacks.on_epoch_end(0, {"loss": 1.0})
    shown = re.findall(r"(\d+/\d+)", re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out))
    assert shown == ["4/8", "8/8"]


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
