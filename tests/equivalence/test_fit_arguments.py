"""Every argument of `fit` means what it means to stock Keras."""

import re

import keras
import numpy as np
import pytest

from . import models
from .side_by_side import assert_equivalent, make_convoy, make_stock


def fit(*data, **settings):
    """Train on batches of 30 of 150: five steps in an epoch."""

    def run(model):
        history = model.fit(*data, **({"batch_size": 30, "epochs": 3, "verbose": 0} | settings))
        return history.history, history.epoch

    return run


@pytest.fixture
def xy(table):
    return table[0], table[2]


# Validation -----------------------------------------------------------------------------------


def test_validation_split(xy):
    assert_equivalent(models.classifier, fit(*xy, validation_split=0.2))


def test_validation_split_with_sample_weight(xy):
    weight = np.linspace(0.5, 2, 150).astype("float32")
    assert_equivalent(models.classifier, fit(*xy, sample_weight=weight, validation_split=0.2))


def test_validation_data_with_sample_weight(xy):
    x, y = xy
    weight = np.linspace(0, 1, 60).astype("float32")
    assert_equivalent(models.classifier, fit(x, y, validation_data=(x[:60], y[:60], weight)))


@pytest.mark.parametrize("frequency", [2, [1, 3], 5])
def test_validation_freq(xy, frequency):
    run = fit(*xy, epochs=4, validation_data=xy, validation_freq=frequency)
    assert_equivalent(models.classifier, run)


def test_validation_steps_and_batch_size(xy):
    # Every validation begins at the first sample again.
    run = fit(*xy, validation_data=xy, validation_steps=2, validation_batch_size=40)
    assert_equivalent(models.classifier, run)


def test_validation_batch_size_that_does_not_divide_the_data(xy):
    run = fit(*xy, validation_data=xy, validation_batch_size=64)
    assert_equivalent(models.classifier, run)


def test_validation_on_a_generator(xy):
    # Always the same batch: stock Keras reads one ahead and loses it after each validation.
    x, y = xy

    def batches():
        while True:
            yield x[:30], y[:30]

    def run(model):
        return fit(x, y, validation_data=batches(), validation_steps=2)(model)

    assert_equivalent(models.classifier, run)


# Limits of Keras's configuration ----------------------------------------------------------------


@pytest.fixture
def step_limit():
    keras.config.set_max_steps_per_epoch(3)
    yield
    keras.config.set_max_steps_per_epoch(None)


@pytest.mark.usefixtures("step_limit")
@pytest.mark.filterwarnings("ignore:Limiting steps_per_epoch to 3")
@pytest.mark.filterwarnings("ignore:(Your input ran out|The data ends after)")
@pytest.mark.parametrize("batch_size", [30, None])
def test_limit_of_steps_for_arrays(xy, batch_size):
    # Without a batch size, stock Keras divides the data by the number of steps.
    def run(model):
        logs = fit(*xy, batch_size=batch_size, validation_data=xy)(model)
        evaluated = model.evaluate(*xy, batch_size=batch_size, return_dict=True, verbose=0)
        return logs, evaluated, model.predict(xy[0], batch_size=batch_size, verbose=0)

    assert_equivalent(models.classifier, run)


@pytest.mark.usefixtures("step_limit")
@pytest.mark.filterwarnings("ignore:Limiting steps_per_epoch to 3")
def test_limit_of_steps_for_batches_of_replicas(xy):
    # The limit is one of steps: each has a batch for every replica.
    batches = [tuple(part[at : at + 15] for part in xy) for at in range(0, 150, 15)]
    model = make_convoy(models.classifier, devices=2)
    stock = make_stock(models.classifier)
    expected, found = (
        m.fit(data, epochs=1, shuffle=False, verbose=0).history
        for m, data in ((stock, dataset_of(pairs(batches))), (model, dataset_of(batches)))
    )
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)


def pairs(batches):
    """Return batches twice as large, each of two."""
    return [
        tuple(map(np.concatenate, zip(first, second, strict=True)))
        for first, second in zip(batches[::2], batches[1::2], strict=True)
    ]


def dataset_of(batches):
    class Dataset(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    return Dataset()


# Weights --------------------------------------------------------------------------------------


def test_class_weight(xy):
    assert_equivalent(models.classifier, fit(*xy, class_weight={0: 3.0, 1: 0.5, 2: 1.0}))


def test_class_weight_of_one_hot_targets(xy):
    x, y = xy

    def make(steps):
        return models.classifier(steps, loss="categorical_crossentropy")

    run = fit(x, keras.utils.to_categorical(y, 3), class_weight={0: 3.0, 1: 0.5, 2: 1.0})
    assert_equivalent(make, run)


@pytest.mark.parametrize("shape", [(150,), (150, 1)])
def test_sample_weight(xy, shape):
    weight = np.linspace(0, 2, 150).astype("float32").reshape(shape)
    weighted = ["accuracy", keras.metrics.SparseCategoricalCrossentropy]

    def make(steps):
        return models.classifier(
            steps, weighted_metrics=[weighted[0], weighted[1](name="crossentropy")]
        )

    assert_equivalent(make, fit(*xy, sample_weight=weight))


def test_sample_weight_of_several_outputs(table):
    x, y = models.two_by_two_data(table)
    weight = {
        "kind": np.linspace(0, 2, 150).astype("float32"),
        "amount": np.linspace(2, 0, 150).astype("float32"),
    }
    assert_equivalent(models.two_by_two, fit(x, y, sample_weight=weight))


# Epochs and steps -----------------------------------------------------------------------------


def test_initial_epoch(xy):
    def run(model):
        history = model.fit(*xy, batch_size=30, initial_epoch=2, epochs=4, verbose=0)
        return history.history, history.epoch

    assert_equivalent(models.classifier, run)


@pytest.mark.parametrize("epochs", [0, 1])
def test_few_epochs(xy, epochs):
    assert_equivalent(models.classifier, fit(*xy, epochs=epochs))


def test_an_initial_epoch_past_the_last_trains_nothing(xy):
    assert_equivalent(models.classifier, fit(*xy, initial_epoch=3, epochs=3))


def test_steps_per_epoch_goes_on_where_the_last_epoch_stopped(xy):
    # Two steps, two steps; the third epoch has one batch left and Keras says so.
    run = fit(*xy, steps_per_epoch=2, epochs=2)
    assert_equivalent(models.classifier, run)


def test_steps_per_epoch_that_divides_the_data(xy):
    # Six batches of 25: every second epoch begins a new order.
    run = fit(*xy, batch_size=25, steps_per_epoch=3, epochs=5)
    assert_equivalent(models.classifier, run)


def test_steps_per_epoch_that_outlasts_the_data_warns(xy):
    run = fit(*xy, steps_per_epoch=2, epochs=4)
    # In words of their own: stock Keras says that the input ran out of data.
    with pytest.warns(UserWarning, match="data"):
        assert_equivalent(models.classifier, run)


def test_steps_per_epoch_on_a_generator(xy):
    x, y = xy

    def batches():
        while True:
            for start in range(0, 150, 30):
                yield x[start : start + 30], y[start : start + 30]

    def run(model):
        settings = {"batch_size": None, "shuffle": False, "steps_per_epoch": 4, "epochs": 4}
        return fit(batches(), **settings)(model)

    assert_equivalent(models.classifier, run)


def test_steps_per_epoch_without_batch_size(xy):
    assert_equivalent(models.classifier, fit(*xy, batch_size=None, steps_per_epoch=5, epochs=2))


@pytest.mark.parametrize("shuffle", [False, True, "batch"])
def test_shuffle(xy, shuffle):
    assert_equivalent(models.classifier, fit(*xy, batch_size=40, shuffle=shuffle))


def test_the_batch_size_is_32_unless_told(xy):
    assert_equivalent(models.classifier, fit(*xy, batch_size=None))


# What is printed ------------------------------------------------------------------------------


def final_lines(text: str) -> list[str]:
    """Return the lines with a bar's last state, without the times."""
    text = re.sub(r"\x1b\[[0-9;]*m|[\r\b]", "", text)
    text = re.sub(r"\b\d+(ms|us|s)(/step|/epoch)?(?!\w)", "_", text)
    bars = (re.match(r"(\d+)/(\d+)", line) for line in text.splitlines())
    return [
        line.strip()
        for line, bar in zip(text.splitlines(), bars, strict=True)
        if line.strip() and (bar is None or bar[1] == bar[2])
    ]


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_the_progress_bar_ends_as_in_stock_keras(xy, verbose, capfd):
    def shown(model):
        capfd.readouterr()
        model.fit(*xy, batch_size=30, epochs=2, validation_data=xy, verbose=verbose)
        model.evaluate(*xy, batch_size=30, verbose=verbose)
        model.predict(xy[0], batch_size=30, verbose=verbose)
        return final_lines(capfd.readouterr().out)

    expected = shown(make_stock(models.classifier))
    assert (verbose == 0) == (not expected)
    assert shown(make_convoy(models.classifier, 3)) == expected
    assert shown(make_convoy(models.classifier, 1)) == expected
