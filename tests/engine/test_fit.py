"""Runs of `fit`: their data, their logs, and what ends them."""

import convoy
import keras
import numpy as np
import pytest


def make(steps_per_execution=1):
    with convoy.Strategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    return model


def data(samples):
    return np.ones((samples, 3), "float32"), np.ones((samples, 2), "float32")


def test_says_that_a_generator_is_exhausted():
    def batches():
        for _ in range(4):
            yield data(2)

    model = make(2)
    model.fit(batches(), verbose=0, shuffle=False)
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        model.fit(batches(), epochs=2, verbose=0, shuffle=False)


def test_refuses_an_input_without_a_single_batch():
    class Nothing(keras.utils.PyDataset):
        def __len__(self):
            return 0

        def __getitem__(self, index):
            raise IndexError

    with pytest.raises(ValueError, match="Nothing has no batch: its length is 0"):
        make().fit(Nothing(), verbose=0)


def test_validation_runs_after_the_epochs_that_are_asked_for():
    model = make()
    logs = model.fit(
        *data(4), epochs=4, validation_data=data(2), validation_freq=[2, 4], verbose=0
    ).history
    assert len(logs["loss"]) == 4
    assert len(logs["val_loss"]) == 2


def test_a_nan_loss_is_explained_once():
    x, y = data(4)
    x[3] = np.nan
    with pytest.warns(UserWarning, match="The loss is NaN at the end of epoch 1") as caught:
        make().fit(x, y, epochs=3, batch_size=2, verbose=0)
    assert len(caught) == 1


def test_a_callback_that_stops_training_ends_the_run_after_its_epoch():
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    assert len(make().fit(*data(4), epochs=5, callbacks=[Stop()], verbose=0).epoch) == 2
