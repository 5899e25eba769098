"""Ctrl-C never leaves a model without its values."""

import signal

import convoy
import keras
import numpy as np
import pytest
from convoy import keras_bridge
from convoy.engine.interrupts import Uninterrupted
from convoy.engine.program import WholeModelRunner


@pytest.fixture(autouse=True)
def heeds_ctrl_c():
    """What a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def uninterrupted(seen, interrupts, error=None):
    with Uninterrupted():
        for _ in range(interrupts):
            interrupt()
        if error is not None:
            raise error
        seen.append("went on")


def test_an_interrupt_waits_for_the_end_of_the_block():
    seen = []
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(seen, 1)
    assert seen == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_does_not_wait():
    seen = []
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(seen, 2)
    assert seen == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_the_block_comes_before_an_interrupt():
    with pytest.raises(ValueError, match="mine"):
        uninterrupted([], 1, ValueError("mine"))


def test_ctrl_c_after_a_device_call_leaves_the_outcome_in_the_model(monkeypatch):
    """The values were given to the device call, and its outcome is not in the model yet."""
    with convoy.Strategy(devices=1).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    model.fit(x, y, batch_size=4, verbose=0)
    before = model.get_weights()

    run_program = WholeModelRunner._program

    def interrupted_program(self, chunk):
        program = run_program(self, chunk)

        def then_interrupt(*args):
            outcome = program.run(*args)
            interrupt()
            return outcome

        return program._replace(run=then_interrupt)

    monkeypatch.setattr(WholeModelRunner, "_program", interrupted_program)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=4, verbose=0)
    monkeypatch.undo()
    assert not any(value.is_deleted() for value in keras_bridge.values(model.variables))
    assert int(model.optimizer.iterations.value) == 2
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
