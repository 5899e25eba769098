"""Models go back and forth between stock Keras and Convoy, and a scope leaves no trace."""

import copy
import json
import os
import pickle
import subprocess
import sys
import threading

import convoy
import keras
import numpy as np
import pytest
from convoy.engine.prepared_model import PreparedModel
from keras import layers

from . import models
from .side_by_side import SEED, assert_same, begin, make_convoy, make_stock, state

STOCK_PROCESS = """
import json, sys
try:
    import convoy
except ImportError:
    pass
else:
    raise SystemExit("convoy can be imported here, so this would prove nothing")
import numpy as np, keras
model = keras.models.load_model("model.keras")
data = np.load("data.npz")
x, y = data["x"], data["y"]
predicted = model.predict(x, verbose=0)
keras.utils.set_random_seed(int(sys.argv[1]))
history = model.fit(x, y, batch_size=30, epochs=2, shuffle=False, verbose=0).history
model.save("continued.keras")
np.savez("outcome.npz", predicted=predicted, history=json.dumps(history))
"""


def engine_runs(model):
    """Return whether the model runs on Convoy's engine."""
    return "fit" in PreparedModel.of(model).methods


@pytest.fixture
def xy(table):
    return table[0], table[2]


def train(model, xy, **settings):
    return model.fit(*xy, **({"batch_size": 30, "epochs": 2, "verbose": 0} | settings)).history


# Between processes ----------------------------------------------------------------------------


def test_a_saved_model_goes_on_in_stock_keras_without_convoy(xy, tmp_path):
    model = make_convoy(models.classifier)
    train(model, xy)
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "data.npz", x=xy[0], y=xy[1])
    predicted = model.predict(xy[0], verbose=0)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"KERAS_BACKEND": "jax"}
    # No PYTHONPATH and no user folder: Convoy may still be installed, so it is hidden.
    hide = "import sys; sys.modules['convoy'] = None\n"
    subprocess.run(
        [sys.executable, "-c", hide + STOCK_PROCESS, str(SEED)],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    outcome = np.load(tmp_path / "outcome.npz")
    assert_same(outcome["predicted"], predicted)
    keras.utils.set_random_seed(SEED)
    assert_same(train(model, xy, shuffle=False), json.loads(str(outcome["history"])))
    continued = keras.models.load_model(tmp_path / "continued.keras")
    assert_same(list(state(continued).values()), list(state(model).values()))


def test_a_stock_model_that_is_loaded_in_a_scope_goes_on_on_the_engine(xy, tmp_path):
    stock = make_stock(models.classifier)
    train(stock, xy)
    stock.save(tmp_path / "model.keras")
    with convoy.Strategy(devices=1).scope():
        model = keras.models.load_model(tmp_path / "model.keras")
    assert engine_runs(model)
    keras.utils.set_random_seed(SEED)
    expected = train(stock, xy, shuffle=False)
    keras.utils.set_random_seed(SEED)
    assert_same(train(model, xy, shuffle=False), expected)
    assert_same(list(state(model).values()), list(state(stock).values()))


@pytest.mark.parametrize("steps", [5, "auto"])
def test_steps_per_execution_survives_saving(xy, tmp_path, steps):
    model = make_convoy(models.classifier, steps)
    train(model, xy)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.steps_per_execution == (1 if steps == "auto" else 5)
    assert not engine_runs(loaded)
    assert_same(loaded.predict(xy[0], verbose=0), model.predict(xy[0], verbose=0))


@pytest.mark.parametrize("devices", [1, 2])
def test_weights_go_to_a_file_and_back(xy, tmp_path, devices):
    model = make_convoy(models.classifier, devices=devices)
    train(model, xy, batch_size=15)
    model.save_weights(tmp_path / "model.weights.h5")
    stock = make_stock(models.classifier)
    stock.optimizer.build(stock.trainable_variables)
    stock.load_weights(tmp_path / "model.weights.h5")
    assert_same(stock.get_weights(), model.get_weights(), exact=True)
    weights = model.get_weights()
    train(model, xy, batch_size=15)
    model.load_weights(tmp_path / "model.weights.h5")
    assert_same(model.get_weights(), weights, exact=True)
    train(model, xy, batch_size=15)  # and it trains on


# Copies ---------------------------------------------------------------------------------------


def by_pickle(model):
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copied", [by_pickle, copy.deepcopy])
def test_a_copy_is_a_model_of_its_own(xy, copied):
    model = make_convoy(models.classifier)
    train(model, xy)
    before = state(model)
    twin = copied(model)
    train(twin, xy, shuffle=False)
    assert_same(state(model), before, exact=True)  # what trained is the copy
    train(model, xy, shuffle=False)
    assert_same(twin.get_weights(), model.get_weights())


def test_a_clone_has_weights_of_its_own(xy):
    model = make_convoy(models.classifier)
    train(model, xy)
    before = state(model)
    clone = keras.models.clone_model(model)
    clone.compile(models.momentum(), "sparse_categorical_crossentropy")
    train(clone, xy)
    assert_same(state(model), before, exact=True)


def test_the_config_is_that_of_a_stock_model():
    assert make_convoy(models.classifier).get_config() == make_stock(models.classifier).get_config()
    made = make_convoy(models.classifier, 1).get_compile_config()
    assert made == make_stock(models.classifier).get_compile_config()


def test_the_class_is_the_users_own():
    class Mine(keras.Model):
        pass

    with convoy.Strategy(devices=1).scope():
        assert type(Mine()) is Mine
        assert type(keras.Sequential()) is keras.Sequential


# Leaving the scope ----------------------------------------------------------------------------


def keras_as_it_is():
    return {
        (cls.__name__, name): vars(cls).get(name)
        for cls in (keras.Model, keras.Sequential)
        for name in dir(cls)
    }


def test_leaving_the_scope_leaves_no_trace_in_keras(xy):
    before = keras_as_it_is()
    model = make_convoy(models.classifier)
    train(model, xy)
    with pytest.raises(RuntimeError), convoy.Strategy(devices=1).scope():
        raise RuntimeError
    after = keras_as_it_is()
    assert before.keys() == after.keys()
    assert all(before[key] is after[key] for key in before)


def test_models_made_outside_of_the_scope_are_stock():
    strategy = convoy.Strategy(devices=1)
    earlier = models.classifier()
    with strategy.scope():
        inside = models.classifier()
        with convoy.Strategy(devices=2).scope():
            innermost = models.classifier()
        still_inside = models.classifier()
    later = models.classifier()
    assert not engine_runs(earlier)
    assert engine_runs(inside)
    assert engine_runs(innermost)
    assert engine_runs(still_inside)
    assert not engine_runs(later)


def test_another_thread_is_not_in_the_scope():
    made = {}

    def elsewhere():
        made["stock"] = models.classifier()

    with convoy.Strategy(devices=1).scope():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        made["engine"] = models.classifier()
    assert not engine_runs(made["stock"])
    assert engine_runs(made["engine"])


def test_scopes_of_two_threads_that_end_in_any_order():
    before = vars(keras.Model)["__new__"]
    entered, leave = threading.Event(), threading.Event()
    made = {}

    def elsewhere():
        with convoy.Strategy(devices=1).scope():
            entered.set()
            leave.wait()
            made["after the other's end"] = models.classifier()

    with convoy.Strategy(devices=1).scope():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        entered.wait()
    made["outside"] = models.classifier()
    leave.set()
    thread.join()
    assert engine_runs(made["after the other's end"])
    assert not engine_runs(made["outside"])
    assert vars(keras.Model)["__new__"] is before


def test_two_models_train_in_two_threads(xy):
    alone = make_convoy(models.classifier)
    expected = train(alone, xy, shuffle=False)
    begin()
    with convoy.Strategy(devices=1).scope():
        pair = [models.classifier(3), models.classifier(3)]
    for model in pair:
        model.set_weights(make_stock(models.classifier).get_weights())
    histories = [None, None]

    def work(position):
        histories[position] = train(pair[position], xy, shuffle=False)

    threads = [threading.Thread(target=work, args=(position,)) for position in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(histories, [expected, expected])


def test_a_prepared_model_keeps_weights_and_compilation(xy):
    stock = make_stock(models.classifier)
    train(stock, xy)
    before, optimizer = state(stock), stock.optimizer
    model = convoy.prepare(stock, convoy.Strategy(devices=1))
    assert model is stock
    assert model.optimizer is optimizer
    assert_same(state(model), before, exact=True)
    train(model, xy)
    assert int(optimizer.iterations) == 20


def test_a_model_moves_from_two_devices_to_one_and_back(xy):
    model = make_convoy(models.classifier, devices=2)
    stock = make_stock(models.classifier)
    for devices in (2, 1, 2):
        convoy.prepare(model, convoy.Strategy(devices=devices))
        history = train(model, xy, batch_size=30 // devices, shuffle=False)
        assert_same(history, train(stock, xy, shuffle=False))
    assert_same(state(model), state(stock))


def test_a_model_leaves_two_devices_for_stock_keras(xy):
    model = make_convoy(models.classifier, devices=2)
    train(model, xy, batch_size=15)
    predicted = model.predict(xy[0], verbose=0)
    assert_same(np.asarray(model(xy[0])), predicted)
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    assert_same(twin.predict(xy[0], verbose=0), predicted)


@pytest.mark.slow
def test_an_application_model_is_prepared():
    begin()
    model = keras.applications.MobileNetV3Small(
        input_shape=(32, 32, 3), weights=None, classes=4, alpha=0.25, minimalistic=True
    )
    assert engine_runs(convoy.prepare(model, convoy.Strategy(devices=1)))
    assert isinstance(model.layers[-1], layers.Layer)
