"""Callbacks see and do what they do under stock Keras."""

import keras
import numpy as np
import pytest
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


@pytest.fixture
def xy(table):
    return table[0], table[2]


def fit(xy, callbacks, **settings):
    """Train with fresh callbacks: five steps of 30 samples in an epoch."""

    def run(model):
        made = callbacks()
        history = model.fit(
            *xy,
            callbacks=made,
            **({"batch_size": 30, "epochs": 4, "verbose": 0} | settings),
        )
        return history.history, history.epoch

    return run


# Keras's own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("restore", [False, True])
def test_early_stopping(xy, restore):
    def callbacks():
        return [
            keras.callbacks.EarlyStopping(
                "loss", patience=1, min_delta=0.2, restore_best_weights=restore
            )
        ]

    assert_equivalent(models.classifier, fit(xy, callbacks, epochs=12))


def test_reduce_lr_on_plateau(xy):
    def callbacks():
        return [keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.2)]

    run = fit(xy, callbacks, epochs=8, validation_data=xy)
    assert_equivalent(models.classifier, run)


def test_learning_rate_scheduler(xy):
    def callbacks():
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]

    assert_equivalent(models.classifier, fit(xy, callbacks))


def test_swap_ema_weights(xy):
    def make(steps):
        return models.classifier(steps, optimizer=models.momentum(use_ema=True))

    def callbacks():
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]

    assert_equivalent(make, fit(xy, callbacks, validation_data=xy))


def test_csv_logger(xy, tmp_path):
    def rows(model, name):
        logger = keras.callbacks.CSVLogger(str(tmp_path / name))
        model.fit(*xy, batch_size=30, epochs=3, validation_data=xy, callbacks=[logger], verbose=0)
        header, *lines = (tmp_path / name).read_text().splitlines()
        return header, [[float(number) for number in line.split(",")] for line in lines]

    expected = rows(make_stock(models.classifier), "stock.csv")
    assert_same(rows(make_convoy(models.classifier), "convoy.csv"), expected)


def test_model_checkpoint_after_each_epoch(xy, tmp_path):
    def saved(model, name):
        path = str(tmp_path / name) + "-{epoch}-{val_loss:.4f}.keras"
        checkpoint = keras.callbacks.ModelCheckpoint(path)
        fit(xy, lambda: [checkpoint], validation_data=xy)(model)
        files = sorted(tmp_path.glob(f"{name}-*"))
        names = [file.name.removeprefix(name) for file in files]
        return names, [state(keras.models.load_model(file)) for file in files]

    expected = saved(make_stock(models.classifier), "stock")
    actual = saved(make_convoy(models.classifier), "convoy")
    assert len(expected[0]) == 4
    assert_same(actual, expected)


def test_model_checkpoint_of_the_best_weights(xy, tmp_path):
    def saved(model, name):
        path = str(tmp_path / f"{name}.weights.h5")
        best = keras.callbacks.ModelCheckpoint(
            path, "val_accuracy", save_best_only=True, save_weights_only=True
        )
        fit(xy, lambda: [best], validation_data=xy)(model)
        model.load_weights(path)
        return [np.asarray(weight) for weight in model.get_weights()]

    expected = saved(make_stock(models.classifier), "stock")
    assert_same(saved(make_convoy(models.classifier), "convoy"), expected)


def test_model_checkpoint_every_few_batches(xy, tmp_path):
    def saved(model, name):
        path = str(tmp_path / name) + "-{epoch}-{batch}.weights.h5"
        every = keras.callbacks.ModelCheckpoint(path, save_freq=3, save_weights_only=True)
        fit(xy, lambda: [every], epochs=2)(model)
        return sorted(file.name.removeprefix(name) for file in tmp_path.glob(f"{name}-*"))

    expected = saved(make_stock(models.classifier), "stock")
    assert expected == ["-1-3.weights.h5", "-2-1.weights.h5", "-2-4.weights.h5"]
    assert saved(make_convoy(models.classifier, 1), "one") == expected
    by_twos = saved(make_stock(lambda _: models.classifier(2)), "stock by twos")
    assert saved(make_convoy(models.classifier, 2), "two") == by_twos


@pytest.mark.filterwarnings("ignore:The loss is NaN")
def test_terminate_on_nan(xy):
    def make(steps):
        return models.classifier(steps, optimizer=keras.optimizers.SGD(float("inf")))

    def run(model):
        history = fit(xy, lambda: [keras.callbacks.TerminateOnNaN()])(model)
        return len(history[0]["loss"]), np.isnan(history[0]["loss"])

    expected = run(make_stock(make))
    assert_same(run(make_convoy(make, 1)), expected)
    assert_same(run(make_convoy(make, 3)), expected)


def test_backup_and_restore_continues_an_interrupted_run(xy, tmp_path):
    class Interruption(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("interrupted")

    def interrupted_then_continued(name):
        def run(model):
            def backup():
                return keras.callbacks.BackupAndRestore(str(tmp_path / name))

            with pytest.raises(RuntimeError, match="interrupted"):
                fit(xy, lambda: [backup(), Interruption()], shuffle=False)(model)
            keras.utils.set_random_seed(1)
            return fit(xy, lambda: [backup()], shuffle=False)(model)

        return run

    stock = make_stock(models.classifier)
    expected = interrupted_then_continued("stock")(stock)
    model = make_convoy(models.classifier)
    actual = interrupted_then_continued("convoy")(model)
    assert_same(actual, expected)
    assert expected[1] == [2, 3]
    assert_same(state(model), state(stock))


# What a callback is told ----------------------------------------------------------------------


def recorded(model, xy, **settings):
    recorder = Recorder()
    fit(xy, lambda: [recorder], **({"epochs": 2, "validation_data": xy} | settings))(model)
    model.evaluate(*xy, batch_size=30, callbacks=[recorder], verbose=0)
    model.predict(xy[0], batch_size=30, callbacks=[recorder], verbose=0)
    return recorder.calls


def test_with_one_step_per_execution_every_hook_is_called_as_in_stock_keras(xy):
    expected = recorded(make_stock(models.classifier), xy)
    actual = recorded(make_convoy(models.classifier, 1), xy)
    assert [call[:2] for call in actual] == [call[:2] for call in expected]
    assert_same([call[2] for call in actual], [call[2] for call in expected])


@pytest.mark.parametrize(("steps", "budget"), [(2, None), (3, 0), (1000, None), (1000, 0)])
def test_batch_hooks_are_called_around_each_device_call(xy, steps, budget):
    """As in stock Keras, where the last one's number may lie behind the end of the epoch."""
    expected = recorded(make_stock(lambda _: models.classifier(steps)), xy)
    actual = recorded(make_convoy(models.classifier, steps, data_budget=budget), xy)
    assert [call[:2] for call in actual] == [call[:2] for call in expected]
    assert_same([call[2] for call in actual], [call[2] for call in expected])


@IN_EVERY_STRATEGY
@pytest.mark.parametrize("kind", ["arrays", "generator"])
def test_the_batch_index_of_a_short_last_execution(xy, kind, strategy):
    """Eight steps in executions of three: stock Keras counts the last one as if it were full."""

    def make(_):
        return models.classifier(3)

    def batches():
        while True:
            for start in range(0, 150, 20):
                yield tuple(part[start : start + 20] for part in xy)

    def indices(model):
        recorder = Recorder()
        settings = {"verbose": 0, "callbacks": [recorder], "shuffle": False}
        if kind == "arrays":
            model.fit(*xy, batch_size=20, **settings)
        else:
            model.fit(batches(), steps_per_epoch=8, **settings)
        return [(name, number) for name, number, _ in recorder.calls if "train_batch" in name]

    expected = indices(make_stock(make))
    assert [number for name, number in expected if name == "on_train_batch_end"] == [2, 5, 8]
    assert indices(make_convoy(make, **strategy)) == expected


@pytest.mark.parametrize("division", [{"devices": 2}, {"gradient_accumulation": 2}])
def test_batch_hooks_with_a_divided_batch(xy, division):
    expected = recorded(make_stock(lambda _: models.classifier(3)), xy)
    actual = recorded(make_convoy(models.classifier, 3, batch="global", **division), xy)
    assert [call[:2] for call in actual] == [call[:2] for call in expected]
    assert_same([call[2] for call in actual], [call[2] for call in expected])


def test_the_callback_knows_how_many_steps_and_epochs_there_will_be(xy):
    class Params(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.seen = dict(self.params)

    def seen(model):
        params = Params()
        fit(xy, lambda: [params])(model)
        return params.seen

    assert seen(make_convoy(models.classifier)) == seen(make_stock(models.classifier))


def test_lambda_callback(xy):
    def seen(model):
        rows = []
        callback = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rows.append((epoch, dict(logs))),
            on_train_batch_end=lambda step, logs: rows.append((step, dict(logs))),
        )
        fit(xy, lambda: [callback])(model)
        return rows

    expected = seen(make_stock(models.classifier))
    assert_same(seen(make_convoy(models.classifier, 1)), expected)


# What a callback does -------------------------------------------------------------------------


class AtStep(keras.callbacks.Callback):
    """Does something to the model after some steps of each epoch."""

    def __init__(self, step, action):
        super().__init__()
        self.step = step
        self.action = action

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.step:
            self.action(self.model)


def scale_weights(model):
    model.set_weights([weight * 0.5 for weight in model.get_weights()])


def lower_learning_rate(model):
    model.optimizer.learning_rate = float(model.optimizer.learning_rate.numpy()) * 0.5


def lower_learning_rate_by_assign(model):
    model.optimizer.learning_rate.assign(model.optimizer.learning_rate * 0.5)


def assign_a_variable(model):
    model.layers[-1].bias.assign([1.0, 0.0, -1.0])


def predict(model):
    model.predict(np.ones((30, 6), "float32"), verbose=0)


def stop(model):
    model.stop_training = True


ACTIONS = [
    scale_weights,
    lower_learning_rate,
    lower_learning_rate_by_assign,
    assign_a_variable,
    predict,
    stop,
]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("action", ACTIONS)
def test_what_a_callback_changes_in_the_middle_of_an_epoch(xy, action, steps):
    # Step 2 is the end of a device call of three steps, so both see the same moment.
    run = fit(xy, lambda: [AtStep(2, action)], epochs=3, validation_data=xy)
    assert_equivalent(models.classifier, run, steps)


@pytest.mark.parametrize("steps", [1, 3])
def test_weights_that_a_callback_reads(xy, steps):
    def seen(model):
        rows = []
        reader = AtStep(2, lambda m: rows.append([np.array(w) for w in m.get_weights()]))
        fit(xy, lambda: [reader], epochs=3)(model)
        return rows

    expected = seen(make_stock(models.classifier))
    assert len(expected) == 3
    assert_same(seen(make_convoy(models.classifier, steps)), expected)


def test_weights_kept_without_a_copy_stay_what_they_were(xy):
    """What `get_weights` returned must not change or vanish as training goes on."""
    kept = []
    reader = AtStep(2, lambda model: kept.append((model.get_weights(), copies(model))))
    fit(xy, lambda: [reader], epochs=3)(make_convoy(models.classifier, 3))
    for weights, copied in kept:
        assert_same(weights, copied, exact=True)


def copies(model):
    return [np.array(weight, copy=True) for weight in model.get_weights()]


def test_a_callback_that_evaluates_and_predicts_after_each_epoch(xy):
    class Probe(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["probe"] = self.model.evaluate(*xy, batch_size=30, verbose=0)[0]
            logs["mean"] = float(np.mean(self.model.predict(xy[0], batch_size=30, verbose=0)))

    assert_equivalent(models.classifier, fit(xy, lambda: [Probe()]))


def test_a_callback_that_stops_evaluation_and_prediction(xy):
    class Stop(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch == 2

        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = batch == 2

    def run(model):
        settings = {"batch_size": 30, "callbacks": [Stop()], "verbose": 0}
        return model.evaluate(*xy, **settings), model.predict(xy[0], **settings)

    assert_equivalent(models.classifier, run)


def test_outputs_that_a_predict_callback_receives(xy):
    class Keep(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.rows = []

        def on_predict_batch_end(self, batch, logs=None):
            self.rows.append(np.array(logs["outputs"]))

    def run(model):
        keep = Keep()
        model.predict(xy[0], batch_size=30, callbacks=[keep], verbose=0)
        return np.concatenate(keep.rows)

    assert_equivalent(models.classifier, run)


def test_logs_that_a_callback_adds_reach_the_history(xy):
    class Add(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["rate"] = float(self.model.optimizer.learning_rate)

    assert_equivalent(models.classifier, fit(xy, lambda: [Add()]))


@pytest.mark.interop
@parts.needs("TensorFlow")
def test_tensorboard_writes_the_same_scalars(xy, tmp_path):
    import tensorflow

    def scalars(folder):
        found = {}
        for file in sorted(folder.rglob("events*")):
            for event in tensorflow.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    if value.HasField("tensor") and value.tag.startswith("epoch_"):
                        number = float(tensorflow.make_ndarray(value.tensor))
                        found[f"{file.parent.name} {value.tag} {event.step}"] = number
        return found

    def run(model):
        folder = tmp_path / ("convoy" if "fit" in vars(model) else "stock")
        board = keras.callbacks.TensorBoard(folder, write_graph=False, histogram_freq=1)
        model.fit(*xy, batch_size=30, epochs=2, verbose=0, callbacks=[board])
        found = scalars(folder)
        assert found
        return found

    assert_equivalent(models.classifier, run)
