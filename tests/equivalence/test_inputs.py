"""Every kind of input feeds the same batches as under stock Keras."""

import convoy
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import scipy.sparse
from keras import layers
from tests import parts

from . import models
from .side_by_side import (
    IN_EVERY_STRATEGY,
    Recorder,
    assert_equivalent,
    assert_same,
    make_convoy,
    make_stock,
    state,
)


def use(x, y=None, **settings):
    """Train, evaluate and predict on an input of any kind."""

    def run(model):
        recorder = Recorder(batches=False)
        always = {"verbose": 0, "callbacks": [recorder]}
        data = (x() if callable(x) else x), *([y] if y is not None else [])
        history = model.fit(*data, epochs=3, **always, **settings).history
        data = (x() if callable(x) else x), *([y] if y is not None else [])
        batch = {k: v for k, v in settings.items() if k == "batch_size"}
        evaluated = model.evaluate(*data, **always, **batch)
        data = x() if callable(x) else x
        return history, evaluated, model.predict(data, **always, **batch), recorder.calls

    return run


@pytest.fixture
def xy(table):
    return table[0], table[2]


# Outputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [150, 40])
def test_predictions_can_be_changed_in_place(xy, batch_size):
    def run(model):
        outputs = model.predict(xy[0], batch_size=batch_size, verbose=0)
        outputs *= 2
        of_batch = model.predict_on_batch(xy[0][:8])
        of_batch += 1
        return outputs, of_batch

    assert_equivalent(models.classifier, run)


# Arrays ---------------------------------------------------------------------------------------


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "dtype", ["float64", "uint8", "bool", slow("int64"), slow("float16"), slow("int8")]
)
def test_numpy_arrays_of_any_type(xy, dtype):
    x, y = xy
    x = x > 0 if dtype == "bool" else np.abs(x * 3).astype(dtype)
    assert_equivalent(models.classifier, use(x, y.astype("int64"), batch_size=30))


def test_jax_arrays(xy):
    x, y = xy
    assert_equivalent(models.classifier, use(jnp.asarray(x), jnp.asarray(y), batch_size=30))


def test_jax_arrays_are_left_alone(xy):
    x, y = (jnp.asarray(part) for part in xy)
    make_convoy(models.classifier).fit(x, y, batch_size=30, verbose=0)
    assert_same([np.asarray(x), np.asarray(y)], [np.asarray(part) for part in xy], exact=True)


def test_views_that_are_not_contiguous(xy):
    x, y = xy
    assert_equivalent(models.classifier, use(np.asfortranarray(x)[::-1], y[::-1], batch_size=30))


def test_targets_of_shape_n_and_n_by_1(xy):
    x, y = xy
    assert_equivalent(models.classifier, use(x, y[:, None], batch_size=30))


@IN_EVERY_STRATEGY
def test_dict_inputs_in_another_order(table, strategy):
    x, y = models.two_by_two_data(table)
    x = {"right": x["right"], "left": x["left"]}
    y = {"amount": y["amount"], "kind": y["kind"]}
    assert_equivalent(models.two_by_two, use(x, y, batch_size=30), **strategy)


# Stock Keras advises against it, and takes it.
@IN_EVERY_STRATEGY
@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict:UserWarning")
@pytest.mark.parametrize(
    "structure",
    [
        lambda left, right: {"one": left, "two": right},
        lambda left, right: {"two": left, "one": right},
        lambda left, right: {"both": [left, right]},
    ],
    ids=["keys", "keys in another order", "nested"],
)
def test_dict_inputs_by_other_keys_than_the_names_of_inputs(xy, structure, strategy):
    x, y = xy

    def make(steps):
        left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
        joined = keras.layers.Concatenate()([left, keras.layers.Dense(2)(right)])
        model = keras.Model(structure(left, right), keras.layers.Dense(3, "softmax")(joined))
        loss = "sparse_categorical_crossentropy"
        model.compile(models.momentum(), loss, steps_per_execution=steps)
        return model

    assert_equivalent(make, use(structure(x, 2 * x), y, batch_size=30), **strategy)


# Stock Keras says that the structure is not the expected one, and takes what it needs.
@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match:UserWarning")
def test_dict_inputs_with_more_keys_than_the_model_needs(xy):
    x, y = xy

    def make(steps):
        inputs = {"left": keras.Input((6,), name="left")}
        model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(inputs["left"]))
        loss = "sparse_categorical_crossentropy"
        model.compile(models.momentum(), loss, steps_per_execution=steps)
        return model

    assert_equivalent(make, use({"left": x, "unused": x[:, :1]}, y, batch_size=30))


@parts.needs("pandas")
def test_pandas(xy):
    import pandas

    x, y = xy
    frame = pandas.DataFrame(x, columns=list("abcdef"))
    assert_equivalent(models.classifier, use(frame, pandas.Series(y), batch_size=40))


# Data sets and generators ---------------------------------------------------------------------


class Sliced(keras.utils.PyDataset):
    """Batches of 40 of 150, the last one smaller, in another order from epoch to epoch."""

    def __init__(self, x, y, **settings):
        super().__init__(**settings)
        self.x, self.y = x, y
        self.epoch = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        part = slice(40 * index, 40 * index + 40)
        return self.x[part], self.y[part]

    def on_epoch_end(self):
        self.epoch += 1
        self.x, self.y = np.roll(self.x, 7, axis=0), np.roll(self.y, 7, axis=0)


@pytest.mark.parametrize("settings", [{}, {"workers": 2, "max_queue_size": 3}])
def test_py_dataset(xy, settings):
    assert_equivalent(models.classifier, use(lambda: Sliced(*xy, **settings), shuffle=False))


def test_py_dataset_that_is_shuffled(xy):
    assert_equivalent(models.classifier, use(lambda: Sliced(*xy), shuffle=True))


def test_py_dataset_with_class_weight(xy):
    run = use(lambda: Sliced(*xy), class_weight={0: 3.0, 1: 0.5, 2: 1.0}, shuffle=False)
    assert_equivalent(models.classifier, run)


class Drawing(keras.utils.PyDataset):
    """Batches of random numbers, which depend on the number and the order of all calls."""

    def __init__(self, name, calls, length):
        super().__init__()
        self.name, self.calls, self.length = name, calls, length

    def __len__(self):
        return self.length

    def _draw(self, call):
        self.calls.append((self.name, call))
        return np.random.normal(size=(8, 6)).astype("float32")

    def __getitem__(self, index):
        x = self._draw(index)
        return x, (x[:, 0] > 0).astype("int32")

    def on_epoch_begin(self):
        self._draw("begin")

    def on_epoch_end(self):
        self._draw("end")


def unbuilt_with_dropout(steps):
    model = keras.Sequential([layers.Dense(8), layers.Dropout(0.5), layers.Dense(3, "softmax")])
    model.compile(models.momentum(), "sparse_categorical_crossentropy", steps_per_execution=steps)
    return model


@pytest.mark.parametrize("make", [models.with_dropout, unbuilt_with_dropout])
@pytest.mark.parametrize("steps", [1, 3])
def test_an_input_that_draws_random_numbers_is_called_as_often_and_in_the_same_order(make, steps):
    """An example is a shuffled `DataLoader` of PyTorch, which draws when it is iterated over."""
    calls = []

    def run(model):
        calls.clear()
        train, validation = Drawing("train", calls, 4), Drawing("validation", calls, 2)
        history = model.fit(train, validation_data=validation, epochs=2, verbose=0).history
        evaluated = model.evaluate(validation, verbose=0)
        predicted = model.predict(Drawing("predict", calls, 2), verbose=0)
        return history, evaluated, predicted, [str(call) for call in calls]

    assert_equivalent(make, run, steps)


def test_generator_of_finite_length(xy):
    x, y = xy

    def batches():
        for start in range(0, 150, 40):
            yield x[start : start + 40], y[start : start + 40]

    stock = make_stock(models.classifier)
    with pytest.warns(UserWarning, match="ran out of data"):  # which the engine need not say
        expected = stock.fit(batches(), epochs=1, shuffle=False, verbose=0).history
    model = make_convoy(models.classifier)
    assert_same(model.fit(batches(), epochs=1, shuffle=False, verbose=0).history, expected)
    assert_same(state(model), state(stock))


def test_generator_whose_batches_change_in_size(xy):
    x, y = xy

    def batches():
        while True:
            for start, stop in [(0, 30), (30, 60), (60, 75), (75, 105), (105, 150)]:
                yield x[start:stop], y[start:stop]

    def run(model):
        return model.fit(batches(), steps_per_epoch=5, epochs=3, shuffle=False, verbose=0).history

    assert_equivalent(models.classifier, run, 3)


def test_generator_with_sample_weights_and_jax_arrays(xy):
    x, y = xy

    def batches():
        while True:
            for start in range(0, 150, 30):
                part = slice(start, start + 30)
                weight = np.linspace(0, 1, 30).astype("float32")
                yield jnp.asarray(x[part]), jnp.asarray(y[part]), jnp.asarray(weight)

    def run(model):
        return model.fit(batches(), steps_per_epoch=5, epochs=3, shuffle=False, verbose=0).history

    assert_equivalent(models.classifier, run)


def test_a_generator_is_not_read_further_than_training_needs(xy):
    """What is left in it belongs to its owner."""
    x, y = xy
    read = []

    def batches():
        for number in range(100):
            read.append(number)
            yield x[:30], y[:30]

    def count(model):
        read.clear()
        model.fit(batches(), steps_per_epoch=4, epochs=2, shuffle=False, verbose=0)
        return len(read)

    assert count(make_convoy(models.classifier, 3)) <= count(make_stock(models.classifier))


def pandas_data(x, y):
    import pandas

    return pandas.DataFrame(x, columns=list("abcdef")), pandas.Series(y)


def batches_of(x, y):
    while True:
        for start in range(0, 150, 30):
            yield x[start : start + 30], y[start : start + 30]


def sparse_batches_of(x, y):
    for x_batch, y_batch in batches_of(x, y):
        yield scipy.sparse.csr_matrix(x_batch), y_batch


def tf_data(x, y):
    import tensorflow

    return tensorflow.data.Dataset.from_tensor_slices((x, y)).batch(30)


def torch_loader(x, y):
    import torch

    dataset = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    return torch.utils.data.DataLoader(dataset, batch_size=30)


def needs(part, *values):
    return pytest.param(*values, marks=[pytest.mark.interop, parts.needs(part)])


ARRAYS = [
    lambda x, y: (x.astype("float64"), y.astype("int64")),
    lambda x, y: (jnp.asarray(x), jnp.asarray(y)),
    pytest.param(pandas_data, marks=parts.needs("pandas")),
    lambda x, y: (np.asfortranarray(x)[::-1], y[::-1, None]),
]
BATCHES = [
    Sliced,
    batches_of,
    sparse_batches_of,
    needs("TensorFlow", tf_data),
    needs("torch", torch_loader),
]
DIVISIONS = pytest.mark.parametrize(
    "division", [{"devices": 2}, {"gradient_accumulation": 2}], ids=["two replicas", "accumulation"]
)


@DIVISIONS
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_any_kind_in_a_divided_batch(xy, kind, division):
    def run(model):
        recorder, (x, y) = Recorder(batches=False), kind(*xy)
        settings = {"batch_size": 30, "verbose": 0}
        history = model.fit(x, y, epochs=2, callbacks=[recorder], **settings).history
        evaluated = model.evaluate(x, y, **settings)
        return history, recorder.calls, evaluated, model.predict(x, **settings)

    assert_equivalent(models.classifier, run, batch="global", **division)


@pytest.mark.filterwarnings("ignore:.*yields sparse batches")
@DIVISIONS
@pytest.mark.parametrize("kind", BATCHES)
def test_batches_of_any_kind_in_a_divided_batch(xy, kind, division):
    def run(model):
        recorder = Recorder(batches=False)
        steps = None if hasattr(kind(*xy), "__len__") else 5  # the others have no end
        settings = {"steps_per_epoch": steps, "epochs": 2, "shuffle": False, "verbose": 0}
        history = model.fit(kind(*xy), callbacks=[recorder], **settings).history
        evaluated = model.evaluate(kind(*xy), steps=steps, verbose=0)
        return history, recorder.calls, evaluated

    assert_equivalent(models.classifier, run, batch="global", **division)


@pytest.mark.interop
@parts.needs("TensorFlow")
def test_tf_data(xy):
    import tensorflow

    assert_equivalent(
        models.classifier,
        use(lambda: tensorflow.data.Dataset.from_tensor_slices(xy).batch(40), shuffle=False),
    )


@pytest.mark.interop
@parts.needs("torch")
@pytest.mark.parametrize("make", [models.with_dropout, unbuilt_with_dropout])
def test_torch_data_loader(xy, make):
    import torch

    def loader():
        torch.manual_seed(0)
        tensors = [torch.tensor(part) for part in xy]
        return torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*tensors), batch_size=40, shuffle=True
        )

    assert_equivalent(make, use(loader, shuffle=False))


# Its length is not known to Keras, so stock Keras warns when it ends.
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@parts.needs("grain")
@pytest.mark.parametrize("kind", ["map", "iter", "loader"])
def test_grain(xy, kind):
    import grain

    x, y = xy

    def dataset():
        source = [(row, label) for row, label in zip(x, y, strict=True)]
        mapped = grain.MapDataset.source(source).shuffle(seed=3).batch(30)
        if kind == "map":
            return mapped
        if kind == "iter":
            return mapped.to_iter_dataset()
        sampler = grain.samplers.IndexSampler(150, shuffle=True, seed=3, num_epochs=1)
        return grain.DataLoader(
            data_source=source, sampler=sampler, operations=[grain.transforms.Batch(30)]
        )

    assert_equivalent(models.classifier, use(dataset, shuffle=False))


# Larger than the budget -----------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "devices"), [(0, 1), (3000, 2), slow(3000, 1), slow(0, 2)])
def test_streamed_arrays_train_bit_by_bit_as_resident_ones(xy, budget, devices):
    def run(data_budget):
        model = make_convoy(models.with_dropout, 3, devices=devices, data_budget=data_budget)
        settings = {"batch_size": 40 // devices, "verbose": 0}
        history = model.fit(*xy, epochs=3, validation_data=xy, **settings).history
        evaluated = model.evaluate(*xy, **settings)
        return history, evaluated, model.predict(xy[0], **settings), state(model)

    if devices > 1:
        with pytest.warns(UserWarning, match="left out"):
            assert_same(run(budget), run(None), exact=True)
    else:
        assert_same(run(budget), run(None), exact=True)


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_streamed_arrays_are_shuffled_as_resident_ones(xy, shuffle):
    def run(data_budget):
        model = make_convoy(models.classifier, 4, data_budget=data_budget)
        history = model.fit(
            *xy, batch_size=40, epochs=3, steps_per_epoch=2, shuffle=shuffle, verbose=0
        )
        return history.history, state(model)

    assert_same(run(0), run(None), exact=True)


# Tensors of other frameworks, missing and optional inputs ------------------------------------


@pytest.mark.interop
@parts.needs("TensorFlow")
@IN_EVERY_STRATEGY
def test_tensorflow_tensors(xy, strategy):
    import tensorflow as tf

    run = every_method(tf.constant(xy[0]), tf.constant(xy[1]))
    assert_equivalent(models.classifier, run, **strategy)


@pytest.mark.interop
@parts.needs("torch")
@IN_EVERY_STRATEGY
def test_torch_tensors(xy, strategy):
    import torch

    run = every_method(torch.tensor(xy[0]), torch.tensor(xy[1]))
    assert_equivalent(models.classifier, run, **strategy)


def every_method(x, y):
    def run(model):
        # Stock Keras takes such tensors in the other methods, but not in these three.
        own = hasattr(model, "set_gradient_accumulation")
        x_batch, y_batch = (x[:10], y[:10]) if own else (np.asarray(x[:10]), np.asarray(y[:10]))
        return (
            use(x, y, batch_size=30)(model),
            model.train_on_batch(x_batch, y_batch),
            model.test_on_batch(x_batch, y_batch),
            model.predict_on_batch(x_batch),
        )

    return run


class SumOfGiven(layers.Layer):
    """Adds an optional input, if it is given."""

    def call(self, a, b):
        return a if b is None else a + b


def two_inputs(optional):
    def make(steps):
        a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b", optional=optional)
        model = keras.Model({"a": a, "b": b}, layers.Dense(1)(SumOfGiven()(a, b)))
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    return make


@IN_EVERY_STRATEGY
@pytest.mark.parametrize("is_given", [False, True])
def test_an_optional_input_that_is_none(table, is_given, strategy):
    x, y, _ = table
    run = use({"a": x, "b": x if is_given else None}, y, batch_size=30)
    assert_equivalent(two_inputs(optional=True), run, **strategy)


@pytest.mark.parametrize("names", [{"a"}, {"a", "b"}])
def test_a_missing_input_gets_the_message_of_keras(table, names):
    x, y, _ = table
    given = {name: x if name == "a" else None for name in names}
    make = two_inputs(optional=False)
    messages = []
    for model in (make_stock(make), make_convoy(make)):
        with pytest.raises(ValueError, match=r"Missing data for input|is not optional") as error:
            model.fit(given, y, verbose=0)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_an_only_input_that_is_none_gets_the_message_of_keras(table):
    def make(_):
        inputs = keras.Input((6,))
        model = keras.Model(inputs, layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
        return model

    for model in (make_stock(make), make_convoy(make)):
        with pytest.raises(ValueError, match="is not optional"):
            model.fit([None], table[1], verbose=0)


def test_keras_warns_of_another_structure_once(table):
    left, right = keras.Input((6,), name="a"), keras.Input((6,), name="b")

    def make(_):
        return keras.Model({"a": left, "b": right}, layers.Add()([left, right]))

    for model in (make_stock(make), make_convoy(make)):
        with pytest.warns(UserWarning, match="The structure of `inputs` doesn't match") as caught:
            model.predict([table[0][:30], table[0][:30]], verbose=0)
        assert len(caught) == 1


@IN_EVERY_STRATEGY
def test_targets_that_are_none(table, strategy):
    x, y, _ = table

    def unsupervised(steps):
        dense = layers.Dense(4, activity_regularizer="l2")
        model = keras.Sequential([keras.Input((6,)), dense])
        model.compile("sgd", steps_per_execution=steps)
        return model

    def two_outputs(steps):
        inputs = keras.Input((6,))
        model = keras.Model(inputs, [layers.Dense(1)(inputs), layers.Dense(2)(inputs)])
        model.compile("sgd", ["mse", None], steps_per_execution=steps)
        return model

    assert_equivalent(unsupervised, use(x, batch_size=30), **strategy)
    assert_equivalent(two_outputs, use(x, [y, None], batch_size=30), **strategy)


@IN_EVERY_STRATEGY
def test_batches_of_varying_length(strategy):
    class Sequences(keras.utils.PyDataset):
        def __len__(self):
            return 7

        def __getitem__(self, index):
            rng = np.random.default_rng(index)
            length = 3 + index // 2
            return rng.normal(size=(4, length, 3)).astype("f4"), rng.normal(size=(4, 1))

    def make(steps):
        model = keras.Sequential([keras.Input((None, 3)), layers.GRU(4), layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    assert_equivalent(make, use(Sequences(), shuffle=False), **strategy)


# Values that are not finite -------------------------------------------------------------------


def with_nan(x):
    x = x.copy()
    x[17, 2] = np.nan
    return x


@IN_EVERY_STRATEGY
def test_nan_that_the_model_replaces(table, strategy):
    def make(steps):
        clean = layers.Lambda(keras.ops.nan_to_num)
        model = keras.Sequential([keras.Input((6,)), clean, layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    x, y, _ = table
    assert_equivalent(make, use(with_nan(x), y, batch_size=30), **strategy)


@IN_EVERY_STRATEGY
@pytest.mark.parametrize("budget", [None, 0])
def test_a_loss_that_turns_nan_is_traced_to_its_input(table, budget, strategy):
    x, y, _ = table
    model = make_convoy(two_inputs(optional=False), data_budget=budget, **strategy)
    expected = r"loss is NaN at the end of epoch 1\. Input\['b'\] holds NaN or .* in sample 17\."
    with pytest.warns(UserWarning, match=expected) as caught:
        history = model.fit({"a": x, "b": with_nan(x)}, y, epochs=3, verbose=0).history
    assert len(caught) == 1
    assert np.isnan(history["loss"]).all()


def test_a_loss_that_turns_nan_is_traced_to_a_batch_of_a_dataset(table):
    x, y, _ = table
    x = with_nan(x)

    class Dataset(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            rows = slice(10 * index, 10 * index + 10)
            return x[rows], y[rows]

    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)])
    model = convoy.prepare(model, convoy.Strategy(devices=1))
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="NaN") as caught:
        model.fit(Dataset(), epochs=3, shuffle=False, verbose=0)
    messages = [str(item.message) for item in caught]
    assert len(messages) == 2
    expected = (
        "The input holds NaN or infinity, first in sample 7 of batch 1. Correct or remove it."
    )
    assert messages[1] == expected


def test_a_loss_that_turns_nan_without_a_cause_in_the_input(table):
    model = make_convoy(
        lambda steps: models.classifier(steps, optimizer=keras.optimizers.SGD(float("inf")))
    )
    with pytest.warns(UserWarning, match="The inputs are finite: a lower learning rate may help"):
        model.fit(table[0], table[2], verbose=0)
