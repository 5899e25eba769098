"""The host's side of the loop: device calls, callbacks, and what they see."""

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy.engine.program import WholeModelRunner


def make(steps_per_execution=1, strategy=None):
    with (strategy or convoy.Strategy()).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    return model


@pytest.fixture
def calls(monkeypatch):
    """The number of steps of every device call."""
    counts = []
    original = WholeModelRunner.run

    def run(self, chunk):
        counts.append(chunk.steps)
        return original(self, chunk)

    monkeypatch.setattr(WholeModelRunner, "run", run)
    return counts


@pytest.fixture
def compilations():
    """The names of the programs that XLA compiles."""
    found = []

    def listen(name, *_, **details):
        if name.endswith("backend_compile_duration") and "run_steps" in str(
            details.get("fun_name")
        ):
            found.append(details["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def data(samples):
    return np.ones((samples, 3), "float32"), np.ones((samples, 2), "float32")


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, [1] * 10), (4, [4, 4, 2]), (10, [10]), (1000, [10])]
)
def test_one_device_call_runs_as_many_steps_as_asked_for(calls, steps, expected):
    make(steps).fit(*data(20), batch_size=2, verbose=0)
    assert calls == expected


def test_a_tail_of_the_epoch_runs_in_the_same_program(compilations):
    make(4).fit(*data(20), batch_size=2, epochs=2, verbose=0)
    assert len(compilations) == 1


def test_a_streamed_tail_runs_in_the_same_program(compilations):
    make(4, convoy.Strategy(data_budget=0)).fit(*data(20), batch_size=2, epochs=2, verbose=0)
    assert len(compilations) == 1


def test_a_second_fit_compiles_nothing(compilations):
    model = make(4)
    model.fit(*data(20), batch_size=2, verbose=0)
    before = len(compilations)
    model.fit(*data(24), batch_size=2, verbose=0)
    model.fit(*data(20), batch_size=2, verbose=0)
    assert len(compilations) <= before + 1  # another size of the data set is another program


def test_changing_the_number_of_steps_by_compile_keeps_training_right(calls):
    model = make(4)
    model.fit(*data(20), batch_size=2, verbose=0)
    model.compile("sgd", "mse", steps_per_execution=5)
    model.fit(*data(20), batch_size=2, verbose=0)
    assert calls == [4, 4, 2, 5, 5]


def test_a_streamed_execution_is_cut_where_the_budget_ends(calls):
    one_step = 2 * (3 + 2) * 4
    strategy = convoy.Strategy(data_budget=3 * 4 * one_step)
    make(1000, strategy).fit(*data(40), batch_size=2, verbose=0)
    assert calls == [3] * 6 + [2]


def test_weights_are_donated_to_the_device_call():
    model = make(4)
    model.fit(*data(8), batch_size=2, verbose=0)
    held = model.trainable_variables[0].value
    model.fit(*data(8), batch_size=2, verbose=0)
    assert held.is_deleted()


def test_evaluating_leaves_the_weights_where_they_are():
    model = make(4)
    model.evaluate(*data(8), batch_size=2, verbose=0)
    held = model.trainable_variables[0].value
    model.evaluate(*data(8), batch_size=2, verbose=0)
    model.predict(data(8)[0], batch_size=2, verbose=0)
    assert model.trainable_variables[0].value is held


@pytest.mark.parametrize("budget", [None, 0])
def test_a_prediction_is_cut_where_its_outputs_fill_the_budget(calls, budget):
    strategy = convoy.Strategy(data_budget=budget)
    outputs = make(1000, strategy).predict(np.ones((10, 3)), batch_size=2, verbose=0)
    assert outputs.shape == (10, 2)
    assert calls == ([5] if budget is None else [1] * 5)


def test_automatic_steps_are_not_written_into_a_saved_model(tmp_path):
    model = make("auto")
    model.fit(*data(64), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.steps_per_execution == 1
