"""Hooks and checkpoints between the device calls of an estimator."""

from types import SimpleNamespace

import keras
import pytest
from convoy.checkpoint.folder import Folder
from convoy.estimator import ModeKeys
from convoy.estimator.callbacks import EvaluationCallback, TrainingCallback
from convoy.estimator.hooks import Hook, Run
from convoy.estimator.run_config import RunConfig


class Recorder(Hook):
    """Notes the events, with the step and the loss at each."""

    def __init__(self, stop_at=None):
        self.events, self.stop_at = [], stop_at

    def begin(self, run):
        self.events.append("begin")

    def after_execution(self, run):
        self.events.append((run.global_step, run.loss))
        run.stopped = run.global_step == self.stop_at

    def after_save(self, run):
        self.events.append(f"saved {run.global_step}")

    def end(self, run):
        self.events.append("end")


class Network:
    """The part of a network that callbacks use."""

    def __init__(self, model):
        self.model, self.resets, self.step_values = model, 0, {}

    def reset_metrics(self):
        self.resets += 1


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def run_of(mode, step=0, **config):
    return Run(SimpleNamespace(config=RunConfig(**config)), mode, step)


def training(model, folder, hook, step=0, **config):
    run = run_of(ModeKeys.TRAIN, step, **config)
    callback = TrainingCallback(run, Network(model), [hook], folder)
    callback.set_model(model)
    return callback


@pytest.fixture
def folder(tmp_path):
    folder = Folder(tmp_path)
    folder.open_for_writing()
    yield folder
    folder.close()


def test_steps_are_counted_and_checkpoints_are_written_when_due(model, folder):
    hook = Recorder()
    callback = training(model, folder, hook, step=10, checkpoint_every=4)
    callback.on_train_begin()
    for last in (1, 3, 5):  # two steps in each device call
        callback.on_train_batch_begin(last - 1)
        callback.on_train_batch_end(last, {"loss": last / 2})
    callback.finish()
    assert hook.events == [
        "begin",
        (12, 0.5),
        "saved 12",  # a multiple of 4
        (14, 1.5),
        (16, 2.5),
        "saved 16",
        "end",
    ]
    assert [position.step for position in folder.positions()] == [12, 16]
    assert callback.network.resets == 2  # not before the first call, which has nothing to reset


def test_the_last_checkpoint_is_not_written_twice(model, folder):
    hook = Recorder()
    callback = training(model, folder, hook, checkpoint_every=1)
    callback.on_train_begin()
    callback.on_train_batch_end(0, {"loss": 1.0})
    callback.finish()
    assert hook.events == ["begin", (1, 1.0), "saved 1", "end"]


def test_only_the_newest_checkpoints_are_kept(model, folder):
    callback = training(model, folder, Recorder(), checkpoint_every=1, keep=2)
    callback.on_train_begin()
    for batch in range(4):
        callback.on_train_batch_end(batch, {"loss": 1.0})
    assert [position.step for position in folder.positions()] == [3, 4]


def test_a_hook_ends_training(model, folder):
    callback = training(model, folder, Recorder(stop_at=2))
    callback.on_train_begin()
    model.stop_training = False
    callback.on_train_batch_end(0, {"loss": 1.0})
    assert not model.stop_training
    callback.on_train_batch_end(1, {"loss": 1.0})
    assert model.stop_training


def test_an_evaluation_begins_once_and_is_stopped_by_a_hook(model):
    hook = Recorder(stop_at=7)
    callback = EvaluationCallback(run_of(ModeKeys.EVAL, 7), [hook])
    callback.set_model(model)
    callback.on_test_begin()
    callback.on_test_batch_end(0, {"loss": 0.25})
    assert model.stop_evaluating
    callback.on_predict_begin()
    callback.on_predict_batch_end(0)
    assert model.stop_predicting
    callback.finish()
    assert hook.events == ["begin", (7, 0.25), (7, 0.25), "end"]
