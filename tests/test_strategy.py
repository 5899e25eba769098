import threading

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy.engine.prepared_model import PreparedModel


def small_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def on_engine(model):
    return "fit" in PreparedModel.of(model).methods


def test_takes_in_models_made_in_its_scope():
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2)(inputs)

    class Subclassed(keras.Model):
        def call(self, x):
            return x

    class SubclassedFunctional(keras.Model):
        pass

    with convoy.Strategy().scope():
        models = [
            keras.Model(inputs, outputs),
            small_model(),
            Subclassed(),
            SubclassedFunctional(inputs, outputs),
            keras.models.clone_model(small_model()),
        ]
    assert all(on_engine(model) for model in models)


def test_leaves_models_made_elsewhere_alone():
    before = small_model()
    with convoy.Strategy().scope():
        pass
    assert not on_engine(before)
    assert not on_engine(small_model())


def test_leaves_no_trace_in_keras():
    methods = dict(vars(keras.Model))
    with convoy.Strategy().scope():
        small_model()
    assert dict(vars(keras.Model)) == methods


def test_leaves_no_trace_after_an_error():
    plain = keras.Model.__dict__["__new__"]
    with pytest.raises(ZeroDivisionError), convoy.Strategy().scope():
        _ = 1 / 0
    assert keras.Model.__dict__["__new__"] is plain


def test_the_innermost_scope_counts():
    outer, inner = convoy.Strategy(), convoy.Strategy(devices=2)
    with outer.scope():
        with inner.scope():
            first = small_model()
        second = small_model()
    assert first.set_gradient_accumulation.__self__.host_loop.config is inner.execution_config
    assert second.set_gradient_accumulation.__self__.host_loop.config is outer.execution_config


def test_a_scope_holds_for_its_own_thread():
    made = []
    with convoy.Strategy().scope():
        thread = threading.Thread(target=lambda: made.append(small_model()))
        thread.start()
        thread.join()
    assert not on_engine(made[0])


def test_prepare_takes_in_a_model_that_exists():
    model = small_model()
    weights = model.get_weights()
    assert convoy.prepare(model) is model
    assert on_engine(model)
    np.testing.assert_equal(model.get_weights(), weights)


def test_prepare_uses_the_scope_around_it():
    model = small_model()
    with convoy.Strategy(devices=2).scope() as strategy:
        convoy.prepare(model)
    assert model.set_gradient_accumulation.__self__.host_loop.config is strategy.execution_config


def test_prepare_refuses_what_is_not_a_model():
    with pytest.raises(TypeError, match=r"takes a keras\.Model, but received Dense"):
        convoy.prepare(keras.layers.Dense(1))


def test_every_device_holds_a_replica():
    assert convoy.Strategy(devices=3).replicas == 3


def test_runs_on_the_device_that_it_is_given():
    last = jax.devices()[-1]
    with convoy.Strategy([last]).scope():
        model = small_model()
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 3)), np.ones((8, 2)), verbose=0)
    assert {v.value.devices() == {last} for v in model.trainable_variables} == {True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 10**9}, "1000000000 devices are too many"),
        ({"devices": -1}, "devices=-1 is not a number of devices"),
        ({"replicas": float("nan")}, "replicas=nan is not a number of replicas"),
        ({"replicas": "2"}, "replicas='2' is not a number of replicas"),
        ({"gradient_accumulation": 1.5}, "gradient_accumulation=1.5 is not a number"),
        ({"accumulation_dtype": "foo"}, "accumulation_dtype='foo' cannot hold gradients"),
        ({"reduction_bucket": float("nan")}, "reduction_bucket=nan is not a number of bytes"),
        ({"batch_norm_group": "x"}, "batch_norm_group='x' is not a number of replicas"),
        ({"data_budget": float("nan")}, "data_budget=nan is not a number of bytes"),
        (
            {"activation_checkpointing": 1.5},
            r"=1.5 is not a .*\. Pass 'auto', a number of bytes, or a list of layer names\.$",
        ),
        ({"activation_checkpointing": [1]}, r"activation_checkpointing=\[1\] is not a number"),
        ({"loss_scale": float("nan")}, "loss_scale=nan is not a factor for the loss"),
        ({"loss_scale": 1e300}, "loss_scale=1e.300 is not a factor for the loss"),
        ({"loss_scale": 1e-300}, "loss_scale=1e-300 is not a factor for the loss"),
        ({"loss_scale": 10**400}, "is not a factor for the loss"),
    ],
)
def test_refuses_values_that_make_no_sense_at_once(arguments, message):
    with pytest.raises(ValueError, match=message) as raised:
        convoy.Strategy(**arguments)
    assert "\n" not in str(raised.value)


def test_refuses_a_budget_below_nothing():
    with pytest.raises(ValueError, match="data_budget=-1 is not a number of bytes"):
        convoy.Strategy(data_budget=-1)
