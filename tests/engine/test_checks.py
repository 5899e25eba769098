"""Each kind of bad input is refused in one line, before anything is compiled."""

import convoy
import keras
import numpy as np
import pytest
from convoy.engine import checks


def make(loss="sparse_categorical_crossentropy", classes=3, model_class=keras.Sequential):
    with convoy.Strategy().scope():
        model = model_class(
            [keras.Input((4,), name="pixels"), keras.layers.Dense(classes, activation="softmax")]
        )
        model.compile("sgd", loss)
    return model


@pytest.fixture
def no_compilation(monkeypatch):
    """Fail the test if a program is built."""
    from convoy.engine.compose import Composition

    def build(*_):
        raise AssertionError("a program was built")

    monkeypatch.setattr(Composition, "program", build)


X = np.ones((8, 4), "float32")
Y = np.zeros(8, "int32")

pytestmark = pytest.mark.usefixtures("no_compilation")


def test_a_wrong_shape():
    with pytest.raises(
        ValueError, match=r"'pixels' received samples of shape \(5,\).*expects \(4,\)"
    ):
        make().fit(np.ones((8, 5)), Y, verbose=0)


def test_a_wrong_shape_in_evaluate_and_predict():
    with pytest.raises(ValueError, match="received samples of shape"):
        make().evaluate(np.ones((8, 5)), Y, verbose=0)
    with pytest.raises(ValueError, match="received samples of shape"):
        make().predict(np.ones((8, 5)), verbose=0)


def test_too_few_inputs_get_the_message_of_keras():
    with convoy.Strategy().scope():
        inputs = [keras.Input((4,)), keras.Input((4,))]
        model = keras.Model(inputs, keras.layers.Add()(inputs))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"expects 2 named input\(s\).* received 1 input tensors"):
        model.fit(X, X, verbose=0)


@pytest.mark.parametrize("label", [3, -1])
def test_a_label_out_of_range(label):
    y = Y.copy()
    y[5] = label
    # Stock Keras computes a loss from it, and a script may rely on that.
    expected = rf"Label {label} of sample 5 is out of range.*3 classes"
    with pytest.warns(UserWarning, match=expected), pytest.raises(AssertionError):
        make().fit(X, y, verbose=0)


def test_a_label_out_of_range_in_one_of_several_outputs():
    with convoy.Strategy().scope():
        inputs = keras.Input((4,))
        heads = [
            keras.layers.Dense(n, activation="softmax", name=f"head{n}")(inputs) for n in (2, 5)
        ]
        model = keras.Model(inputs, heads)
        model.compile("sgd", ["sparse_categorical_crossentropy"] * 2)
    expected = "Label 4 of sample 0 is out of range: the model has 2"
    with pytest.warns(UserWarning, match=expected), pytest.raises(AssertionError):
        model.fit(X, [Y + 4, Y + 4], verbose=0)


def test_class_numbers_where_one_hot_is_meant():
    expected = "Did you mean to use sparse_categorical_crossentropy"
    with pytest.warns(UserWarning, match=expected), pytest.raises(AssertionError):
        make("categorical_crossentropy").fit(X, np.full((8, 3), 2.0), verbose=0)


def not_built():
    model = convoy.prepare(keras.Sequential([keras.layers.Dense(3, activation="softmax")]))
    model.compile("sgd", ["sparse_categorical_crossentropy"], metrics=["accuracy"])
    return model


@pytest.mark.parametrize("make_model", [make, not_built])
def test_one_hot_labels_where_class_numbers_are_meant(make_model):
    y = np.eye(3)[Y]
    expected = (
        r"The labels have shape \(8, 3\), so they are one-hot.*Use categorical_crossentropy, or"
    )
    with pytest.raises(ValueError, match=expected):
        make_model().fit(X, y, verbose=0)
    with pytest.raises(ValueError, match=expected):
        make_model().train_on_batch(X, y)
    with pytest.raises(ValueError, match=expected):
        make_model().fit((batch for batch in [(X, y)]), verbose=0, shuffle=False)


def test_one_hot_labels_of_one_of_several_outputs():
    with convoy.Strategy().scope():
        inputs = keras.Input((4,))
        heads = {name: keras.layers.Dense(3, name=name)(inputs) for name in "ab"}
        model = keras.Model(inputs, heads)
        model.compile("sgd", {"a": "mse", "b": "sparse_categorical_crossentropy"})
    with pytest.raises(ValueError, match=r"The labels have shape \(8, 3\), so they are one-hot"):
        model.evaluate(X, {"a": np.eye(3)[Y], "b": np.eye(3)[Y]}, verbose=0)


def test_labels_of_minus_one_and_one_for_binary_crossentropy():
    expected = "Did you mean to map the labels to 0 and 1"
    with pytest.warns(UserWarning, match=expected), pytest.raises(AssertionError):
        make("binary_crossentropy").fit(X, np.full((8, 3), -1.0), verbose=0)


def test_an_ignored_class_is_no_error():
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=255)
    model = make(loss)
    with pytest.raises(AssertionError, match="a program was built"):
        model.fit(X, np.full(8, 255), verbose=0)


@pytest.mark.parametrize("shape", [(0, 4), (0,)])
def test_empty_data(shape):
    with pytest.raises(ValueError, match="The data is empty: x has shape"):
        make().fit(np.ones(shape), Y[:0], verbose=0)


def test_no_data():
    with pytest.raises(ValueError, match="There is no data to run on"):
        make().fit(verbose=0)


@pytest.mark.parametrize("dtype", [str, object])
def test_text(dtype):
    words = np.array([["a"] * 4] * 8, dtype)
    with pytest.raises(ValueError, match=r"x holds values of type .*, but devices compute with nu"):
        make().fit(words, np.zeros(8, "int32"), verbose=0)
    with pytest.raises(ValueError, match=r"y holds values of type .*Convert it first"):
        make().fit(X, words[:, 0], verbose=0)


def test_an_empty_batch():
    with pytest.raises(ValueError, match=r"The data is empty: x has shape \(0, 4\)"):
        make().train_on_batch(X[:0], np.zeros(0, "int32"))


def test_where_inputs_are_not_finite(monkeypatch):
    monkeypatch.setattr(checks, "WINDOW", 8)
    x = X.copy()
    assert checks.first_not_finite({"a": x, "b": Y}) is None
    x[7, 3] = np.inf
    x[6, 1] = np.nan
    expected = "holds NaN or infinity, first in sample 6."
    assert checks.first_not_finite(x) == f"The input {expected}"
    assert checks.first_not_finite({"a": X, "b": x}) == f"Input['b'] {expected}"


def test_bad_batches_of_a_generator():
    def batches(x, y):
        yield x, y

    with pytest.warns(UserWarning, match="Label 7 of sample 0"), pytest.raises(AssertionError):
        make().fit(batches(X, Y + 7), verbose=0, shuffle=False)


def test_data_shorter_than_one_weight_update():
    with convoy.Strategy(devices=4).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"8 samples, fewer .* batch_size 3 x 4 replicas = 12"):
        model.fit(X, Y, batch_size=3, verbose=0)


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
def test_a_model_without_compile(method):
    with convoy.Strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=rf"{method}\(\) was called on .* not been compiled"):
        getattr(model, method)(X, Y)


@pytest.mark.parametrize("value", [0, -1, 2.5, "many", True, None])
def test_a_wrong_steps_per_execution(value):
    with pytest.raises(ValueError, match=r"is not a number of steps\. Pass 1 or more, or 'auto'"):
        make().compile("sgd", "mse", steps_per_execution=value)


@pytest.mark.parametrize("value", [0, 2.0, True])
def test_a_wrong_batch_size(value):
    with pytest.raises(ValueError, match=f"batch_size={value} is not a number of samples"):
        make().fit(X, Y, batch_size=value, verbose=0)
