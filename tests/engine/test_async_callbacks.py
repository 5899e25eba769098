import threading
from types import SimpleNamespace

import convoy
import keras
import numpy as np
import pytest
from convoy.engine.async_callbacks import AsyncCallbacks


class Programs:
    """Runs nothing; the outcome of a chunk is its steps."""

    def run(self, chunk):
        return np.asarray(chunk.steps)


def chunk(steps=1):
    return SimpleNamespace(steps=steps)


def alone(outcome):
    return [outcome]


def test_a_step_is_told_of_before_the_next_is_started():
    told = threading.Event()
    with AsyncCallbacks(lambda step: None, lambda step, outcome: told.set(), alone) as callbacks:
        callbacks.wrap(Programs()).run(chunk())
        assert told.wait(60)


def test_the_run_goes_on_while_a_callback_works():
    goes_on, calls = threading.Event(), []

    def end(step, outcome):
        assert goes_on.wait(60)
        calls.append((step, int(outcome)))

    with AsyncCallbacks(
        lambda step: calls.append(step), end, lambda outcome: [outcome, -outcome]
    ) as callbacks:
        callbacks.start_at(5)
        programs = callbacks.wrap(Programs())
        programs.run(chunk(1))
        programs.run(chunk(2))
        goes_on.set()
        callbacks.wait()
        # Both calls for each replica's share, and for each step of a chunk.
        assert calls == [5, (5, 1), 5, (5, -1), 6, (6, 2), 6, (6, -2), 7, (7, 2), 7, (7, -2)]


def test_what_a_callback_raises_ends_the_run():
    calls = []

    def begin(step):
        calls.append(step)
        raise KeyError("lost")

    with AsyncCallbacks(begin, lambda step, outcome: None, alone) as callbacks:
        programs = callbacks.wrap(Programs())
        programs.run(chunk())
        programs.run(chunk())
        with pytest.raises(KeyError, match="lost"):
            callbacks.wait()
    assert calls == [0]


class Calls(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.begun, self.ended, self.threads = [], [], set()

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append((batch, logs["loss"]))
        self.threads.add(threading.current_thread().name)

    def on_test_batch_end(self, batch, logs=None):
        self.ended.append((batch, logs["loss"]))

    def on_predict_batch_end(self, batch, logs=None):
        self.ended.append((batch, len(logs["outputs"])))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(32, 3)).astype("float32"), rng.normal(size=(32, 1)).astype("float32")


def make(devices, steps, **settings):
    keras.utils.set_random_seed(0)
    with convoy.Strategy(devices=devices, **settings).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps)
    return model


def test_callbacks_hear_of_every_step_as_one_by_one(data):
    plain, model, expected, calls = make(1, 1), make(1, 4), Calls(), Calls()
    model.set_asynchronous_callbacks(True)
    for trained, heard in ((plain, expected), (model, calls)):
        trained.fit(*data, batch_size=4, shuffle=False, verbose=0, callbacks=[heard])
        trained.evaluate(*data, batch_size=8, verbose=0, callbacks=[heard])
    assert calls.begun == list(range(8))
    assert [step for step, _ in calls.ended] == [*range(8), *range(4)]
    np.testing.assert_allclose(calls.ended, expected.ended, rtol=1e-6)
    assert calls.threads == {"convoy-callbacks"}
    for one, other in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_callbacks_hear_of_every_replica_and_micro_batch(data):
    model, calls = make(2, 4, gradient_accumulation=2), Calls()
    model.set_asynchronous_callbacks(True)
    model.fit(*data, batch_size=4, verbose=0, callbacks=[calls])
    assert calls.begun == [0, 0, 1, 1, 2, 2, 3, 3]
    losses = dict(calls.ended)
    assert losses[0] == losses[1] != losses[2] == losses[3]
    calls = Calls()
    outputs = model.predict(data[0], batch_size=4, verbose=0, callbacks=[calls])
    assert calls.ended == [(step // 2, 4) for step in range(8)]
    assert len(outputs) == 32


def test_a_run_stops_between_executions(data):
    class Stop(Calls):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            self.model.stop_training = True

    model, stop = make(1, 2), Stop()
    model.set_asynchronous_callbacks(True)
    model.fit(*data, batch_size=4, verbose=0, callbacks=[stop])
    assert stop.begun == [0, 1]
