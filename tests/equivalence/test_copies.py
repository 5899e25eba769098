"""Copies of a model train with the strategy of the model, and with the results of stock Keras."""

import copy
import pickle
from dataclasses import replace

import convoy
import keras
import numpy as np
import pytest

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


def by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def by_clone(model):
    clone = keras.models.clone_model(model)
    clone.compile(models.momentum(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    clone.set_weights(model.get_weights())
    return clone


def fit(model, table, **settings):
    x, _, classes = table
    recorder = Recorder(batches=False)
    settings = {"batch_size": 30, "verbose": 0, "shuffle": False} | settings
    return model.fit(x, classes, callbacks=[recorder], **settings).history, recorder.calls


def strategy_of(model):
    methods = vars(model).get("set_gradient_accumulation")
    return None if methods is None else methods.__self__.engine_model.strategy


@IN_EVERY_STRATEGY
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, by_pickle, by_clone])
def test_a_copy_trains_with_the_same_strategy(table, copied, strategy):
    def run(model):
        first = fit(model, table)
        twin = copied(model)
        assert twin is not model
        own, other = strategy_of(model), strategy_of(twin)
        assert (own is None) == (other is None)
        if own is not None:
            assert other.devices == own.devices
            placement = own.execution_config.placement
            assert replace(other.execution_config, placement=placement) == own.execution_config
        return first, fit(twin, table), state(twin)

    assert_equivalent(models.classifier, run, **strategy)


@IN_EVERY_STRATEGY
def test_a_loaded_model_trains_with_the_strategy_of_the_scope(table, strategy, tmp_path):
    file = tmp_path / "model.keras"
    trained = make_stock(models.classifier)
    fit(trained, table)
    trained.save(file)

    def load(_):
        return keras.models.load_model(file)

    assert_equivalent(load, lambda model: fit(model, table), steps=1, **strategy)
    chosen = convoy.Strategy(**({"devices": 1} | strategy))
    with chosen.scope():
        assert strategy_of(load(1)) is chosen
    assert strategy_of(load(1)) is None


def test_a_copy_of_a_model_in_stages_is_in_stages(table):
    model = make_convoy(models.classifier, 1, devices=2, gradient_accumulation=2, batch="global")
    model.set_pipeline_stage_assignment([0, 1])
    fit(model, table)
    twin = copy.deepcopy(model)
    assert twin.get_pipeline_stage_assignment() == [0, 1]
    stock = make_stock(models.classifier)
    fit(stock, table)
    assert_same(fit(twin, table), fit(stock, table))


def test_a_model_that_is_unpickled_without_its_devices_says_so(table, monkeypatch):
    import jax

    model = make_convoy(models.classifier, 1, devices=2, batch="global")
    fit(model, table)
    stored = pickle.dumps(model)
    one = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: one)
    with pytest.warns(UserWarning, match="stock Keras model without its strategy: .* device 1"):
        model = pickle.loads(stored)
    monkeypatch.undo()
    assert strategy_of(model) is None
    assert np.isfinite(fit(model, table)[0]["loss"]).all()
