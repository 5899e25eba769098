"""What the engine has no path for is run by stock Keras, with one notice that says why."""

import itertools
import warnings

import convoy
import jax
import keras
import numpy as np
import pytest
import scipy.sparse
from convoy import user_warnings
from jax.experimental import sparse
from keras import layers
from tests import parts

from .side_by_side import (
    IN_EVERY_STRATEGY,
    Recorder,
    assert_equivalent,
    assert_same,
    make_convoy,
    make_stock,
    state,
)


class OnHost(layers.Layer):
    """A layer that leaves JAX, which it says by `supports_jit`."""

    def __init__(self):
        super().__init__()
        self.supports_jit = False

    def call(self, x):
        if isinstance(x, jax.core.Tracer):  # while Keras builds the model
            return x
        return np.cumsum(np.asarray(x), axis=-1)

    def compute_output_shape(self, shape):
        return shape


def make(layer=None, kind=keras.Sequential, **compile_settings):
    def with_steps(steps):
        own = [] if layer is None else [layer()]
        model = kind([keras.Input((6,)), *own, layers.Dense(4, "tanh"), layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"], steps_per_execution=steps, **compile_settings)
        return model

    return with_steps


class OwnFunction(keras.Sequential):
    """A model that makes its own training function."""

    def make_train_function(self, force=False):
        super().make_train_function(force)
        inner = self.train_function

        def function(state, iterator):
            logs, state = inner(state, iterator)
            return logs | {"one": 1.0}, state

        self.train_function = function


CASES = {
    "run_eagerly": (make(run_eagerly=True), "run_eagerly=True was passed to compile()"),
    "jit_compile": (make(jit_compile=False), "jit_compile=False was passed to compile()"),
    "a layer": (make(OnHost), "on_host (OnHost) cannot be compiled."),
    "a function": (make(kind=OwnFunction), "OwnFunction overrides make_train_function."),
}


def fit(table, batches=True):
    x, y, _ = table

    def run(model):
        recorder = Recorder(batches)
        settings = {"batch_size": 30, "epochs": 2, "verbose": 0, "callbacks": [recorder]}
        history = model.fit(x, y, validation_data=(x, y), **settings).history
        return (
            history,
            recorder.calls,
            model.evaluate(x, y, verbose=0, return_dict=True),
            model.predict(x, verbose=0),
        )

    return run


@pytest.mark.parametrize("name", CASES)
def test_stock_keras_runs_it_with_one_notice(table, name):
    made, why = CASES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_equivalent(made, fit(table), steps=1)
    notices = [str(item.message) for item in caught if "Stock Keras runs" in str(item.message)]
    assert len(notices) == 1
    assert notices[0].startswith(why)
    assert "to use Convoy's engine." in notices[0]


def test_the_notice_points_to_the_line_of_the_user(table):
    model = make_convoy(make(run_eagerly=True))
    with pytest.warns(UserWarning, match="Stock Keras runs fit") as caught:
        model.fit(table[0], table[1], verbose=0)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("strategy", "request_"),
    [
        ({"devices": 2}, "2 replicas"),
        ({"gradient_accumulation": 3}, "gradient_accumulation=3"),
        ({"loss_scale": 2.0}, "loss_scale"),
    ],
)
def test_a_request_that_needs_the_engine_is_refused(table, name, strategy, request_):
    made, why = CASES[name]
    model = make_convoy(made, 1, **strategy)
    before = state(model)
    with pytest.raises(ValueError, match=rf"does not support {request_}\. ") as error:
        model.fit(table[0], table[1], batch_size=10, verbose=0)
    assert str(error.value).startswith(why)
    assert_same(state(model), before, exact=True)


def test_checkpoints_are_refused(table, tmp_path):
    model = make_convoy(make(run_eagerly=True))
    with pytest.raises(ValueError, match=r"does not support convoy\.Checkpoints\. "):
        model.fit(table[0], table[1], callbacks=[convoy.Checkpoints(tmp_path)], verbose=0)


class OwnTestFunction(keras.Sequential):
    """A model that makes its own test function."""

    def make_test_function(self, force=False):
        super().make_test_function(force)
        inner = self.test_function

        def function(state, iterator):
            logs, state = inner(state, iterator)
            return logs | {"one": 1.0}, state

        self.test_function = function


def test_validation_by_an_own_function(table):
    x, y, _ = table
    with pytest.warns(UserWarning, match=r"overrides make_test_function\. Stock Keras runs fit"):
        assert_equivalent(make(kind=OwnTestFunction), fit(table), steps=1)
    plain = make_convoy(make(kind=OwnTestFunction), devices=2)
    plain.fit(x, y, batch_size=15, verbose=0)  # without validation, on the engine
    with pytest.raises(ValueError, match=r"overrides make_test_function\. .* support 2 replicas"):
        plain.fit(x, y, batch_size=15, validation_split=0.5, verbose=0)


class SparseBatches(keras.utils.PyDataset):
    """Batches of ten samples, as matrices of SciPy."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // 10

    def __getitem__(self, index):
        part = slice(10 * index, 10 * index + 10)
        return scipy.sparse.csr_matrix(self.x[part]), self.y[part]


def sparse_generator(x, y):
    dataset = SparseBatches(x, y)
    return (dataset[index % len(dataset)] for index in itertools.count())


@IN_EVERY_STRATEGY
@pytest.mark.parametrize("kind", [SparseBatches, sparse_generator])
def test_sparse_batches_are_made_dense(table, kind, strategy):
    def run(model):
        recorder = Recorder(batches=False)
        settings = {"steps_per_epoch": 4, "shuffle": False, "callbacks": [recorder]}
        history = model.fit(kind(*table[:2]), epochs=2, verbose=0, **settings).history
        return history, recorder.calls, model.evaluate(kind(*table[:2]), steps=2, verbose=0)

    user_warnings.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="yields sparse batches. Convoy's engine makes them dense"):
        assert_equivalent(make(), run, **strategy)


@pytest.mark.interop
@parts.needs("TensorFlow")
def test_sparse_batches_of_tensorflow_are_made_dense(table):
    import tensorflow as tf

    x, y = np.where(table[0] > 0.5, table[0], 0), table[1]

    def run(model):
        data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).batch(30)
        history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
        return history, model.evaluate(data, verbose=0)

    user_warnings.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="yields sparse batches. Convoy's engine makes them dense"):
        assert_equivalent(make(), run)


@pytest.mark.filterwarnings("ignore:run_eagerly=True")
def test_the_engine_comes_back(table):
    def run(model):
        model.fit(table[0], table[1], verbose=0)
        model.run_eagerly, model.jit_compile = False, True
        model.make_train_function(force=True)
        return fit(table)(model)

    assert_equivalent(make(run_eagerly=True), run, steps=1)


@parts.needs("TensorFlow")
def test_sparse_input():
    dense = np.random.default_rng(0).normal(size=(20, 6)).astype("float32")
    dense[dense < 0.5] = 0
    x = sparse.BCOO.fromdense(dense, n_batch=0)
    y = dense.sum(axis=1, keepdims=True)

    def made(steps):
        inputs = keras.Input((6,), sparse=True)
        model = keras.Model(inputs, layers.Dense(1)(inputs))
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    with pytest.warns(UserWarning, match="The input is sparse"):
        assert_equivalent(
            made, lambda model: model.fit(x, y, batch_size=10, verbose=0).history, steps=1
        )


@pytest.mark.interop
@parts.needs("TensorFlow")
@pytest.mark.parametrize("validates", [False, True], ids=["training", "validation"])
def test_sparse_matrices(table, validates):
    x, y, _ = table
    x = np.where(x > 0.5, x, 0)
    matrix = scipy.sparse.csr_matrix(x)

    def run(model):
        settings = {"batch_size": 30, "verbose": 0, "validation_data": (matrix, y)}
        history = model.fit(x if validates else matrix, y, **settings).history
        return history, model.evaluate(matrix, y, verbose=0), model.predict(matrix, verbose=0)

    with pytest.warns(UserWarning, match="The input is sparse. Stock Keras runs fit"):
        assert_equivalent(make(), run, steps=1)


def test_a_distribution_of_keras(table):
    def made(steps):
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
        )
        return make()(steps)

    try:
        with pytest.warns(UserWarning, match=r"A distribution of .* is set\. Stock"):
            assert_equivalent(made, fit(table), steps=1)
    finally:
        keras.distribution.set_distribution(None)


def test_a_metric_of_a_layer_that_is_not_updated_in_call(table):
    class Keeping(layers.Layer):
        def __init__(self):
            super().__init__()
            self.seen = keras.metrics.Mean(name="seen")

        def call(self, x):
            return x

    assert_equivalent(make(Keeping), fit(table, batches=False))


class HostOptimizer(keras.optimizers.SGD):
    """An optimizer that clips gradients with NumPy."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(np.clip(np.asarray(gradient), -0.1, 0.1), variable, learning_rate)


class HostSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that reads the number of the step in Python."""

    def __call__(self, step):
        return 0.1 if int(step) < 3 else 0.01


@pytest.mark.parametrize("optimizer", [HostOptimizer, lambda: keras.optimizers.SGD(HostSchedule())])
def test_an_optimizer_that_computes_on_the_host(table, optimizer):
    def made(**settings):
        def with_steps(steps):
            model = make()(steps)
            model.compile(optimizer(), "mse", metrics=["mae"], **settings)
            return model

        return with_steps

    with pytest.warns(UserWarning, match=r"run_eagerly=True .* Stock Keras runs fit"):
        assert_equivalent(made(run_eagerly=True), fit(table), steps=1)
    # Neither stock Keras nor the engine can compile it. Stock Keras loses the weights.
    with pytest.raises(TypeError, match="traced array"):
        make_stock(made()).fit(table[0], table[1], batch_size=30, verbose=0)
    model = make_convoy(made())
    before = [np.asarray(variable.value) for variable in model.variables]
    with pytest.raises(TypeError, match="traced array"):
        model.fit(table[0], table[1], batch_size=30, verbose=0)
    after = [np.asarray(variable.value) for variable in model.variables]
    assert_same(after, before, exact=True)
