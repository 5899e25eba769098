"""These fail when a release of Keras changes what Convoy stands on."""

from pathlib import Path

import keras
import numpy as np
import pytest
from convoy import keras_bridge


@pytest.fixture
def model():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)], name="bridge"
    )
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def test_values_are_the_arrays_that_variables_hold(model):
    kernel = model.trainable_variables[:1]
    (value,) = keras_bridge.values(kernel)
    assert value is kernel[0].value
    keras_bridge.assign(kernel, [value + 1])
    np.testing.assert_array_equal(kernel[0].numpy(), value + 1)


def test_an_optimizer_computes_in_the_type_that_variables_are_held_in():
    weight = keras.Variable(np.full(1, 1000.0), dtype="float16")
    optimizer = keras.optimizers.SGD(1.0, momentum=0.9)
    optimizer.build([weight])
    state = [np.asarray(v.value, "float32") for v in optimizer.variables]
    with keras_bridge.held_in("float32", [weight, *optimizer.momentums]):
        (new,), _ = optimizer.stateless_apply(state, [np.full(1, 0.1, "float32")], [[1000.0]])
    assert weight.dtype == optimizer.momentums[0].dtype == "float16"
    assert new.dtype == "float32"
    np.testing.assert_allclose(new, [999.9], rtol=1e-7)


def test_knows_what_an_optimizer_updates(model):
    model.optimizer.build(model.trainable_variables)
    assert keras_bridge.updated_variables(model.optimizer) == model.trainable_variables


def test_knows_the_seed_without_drawing_from_it():
    keras.utils.set_random_seed(11)
    assert keras_bridge.random_seed() == 11
    first = np.asarray(keras.random.normal((2,)))
    keras.utils.set_random_seed(11)
    np.testing.assert_array_equal(keras.random.normal((2,)), first)


def test_finds_the_policies_of_layers():
    layers = [keras.layers.Dense(2, dtype="mixed_float16"), keras.layers.Dense(2, dtype="float16")]
    inner = keras.Sequential([keras.Input((2,)), *layers])
    outer = keras.Sequential([keras.Input((2,)), inner])
    assert keras_bridge.policies(outer) == {"mixed_float16", "float16"}
    assert keras_bridge.policies(keras.Sequential()) == {"float32"}


def test_finds_the_states_of_random_layers(model):
    seeds = keras_bridge.seed_variables(model)
    names = [v.name for v in model.non_trainable_variables if id(v) in seeds]
    assert names == ["seed_generator_state"]


def test_metrics_say_that_their_state_adds_up(model):
    model.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0)
    assert {variable.aggregation for variable in model.metrics_variables} == {"sum"}


def test_compile_makes_another_compilation(model):
    before = keras_bridge.compilation(model)
    model.compile("sgd", "mse")
    assert keras_bridge.compilation(model) is not before


def test_builds_metrics_loss_and_optimizer(model):
    batches = keras_bridge.Batches(np.ones((6, 4)), np.ones((6, 2)), None, 2)
    batches.build(model, "train")
    assert model.optimizer.built
    assert len(model.metrics_variables) == 4
    assert keras_bridge.compiled_losses(model)[0][0] == ()


def test_keras_is_told_the_types_that_a_device_has(model, monkeypatch):
    """JAX warns of 64 bits that it will narrow, and NumPy's whole numbers have them."""
    told = []
    monkeypatch.setattr(model, "_symbolic_build", lambda data_batch: told.append(data_batch))
    x, y = np.zeros((2, 4), "float16"), {"a": np.zeros(2, "int64"), "b": np.zeros(2)}
    keras_bridge.build_for_batch(model, (x, y, None))
    ((x, y, weights),) = told
    assert (x.shape, x.dtype, y["a"].dtype, y["b"].dtype) == ((2, 4), "float16", "int32", "float32")
    assert weights is None
    keras_bridge.build_for_batch(model, None)
    assert told[1] is None


def test_builds_a_model_that_was_never_called():
    model = keras.Sequential([keras.layers.Dense(2)])
    keras_bridge.Batches(np.ones((6, 4)), None, None, 2).build(model, "predict")
    assert model.built


def test_knows_which_methods_a_class_defines_anew():
    class Custom(keras.Model):
        def train_step(self, state, data):
            return None

    assert keras_bridge.overridden(Custom(), ("train_step", "test_step")) == ["train_step"]


def test_arrays_come_in_the_types_that_keras_gives_them():
    batches = keras_bridge.Batches(np.ones((6, 4), "float64"), np.ones(6, "int64"), None, 2)
    x, y = batches.arrays
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert batches.batch_size_is_ours


def test_what_is_not_an_array_is_walked_through():
    def generate():
        yield np.ones((2, 4)), np.ones((2, 2))

    batches = keras_bridge.Batches(generate(), None, None, None)
    assert batches.arrays is None
    assert not batches.batch_size_is_ours
    assert len(list(batches)) == 1


def test_callbacks_hear_batches_in_order():
    heard = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: heard.append(b))
    callback.async_safe = True
    callbacks = keras_bridge.Callbacks([callback])
    callbacks.on_train_begin()
    for step in range(200):
        callbacks.on_train_batch_end(step, {})
    callbacks.on_train_end()
    assert heard == list(range(200))


def test_keras_has_no_device_loop_of_its_own_that_would_clash():
    from keras.src.backend.jax import trainer

    source = Path(trainer.__file__).read_text()
    assert "lax.scan" not in source, "Keras scans over steps now: look at steps_per_execution again"


def test_a_graph_is_replayed_on_other_inputs_with_layers_replaced(rng):
    layers = keras.layers
    shared, norm = layers.Dense(3), layers.BatchNormalization()
    x = keras.Input((3,))
    model = keras.Model(x, layers.Add()([shared(norm(shared(x))), x]))
    other = keras.Input((3,))
    doubled = layers.Rescaling(2.0)(other)
    seen = []

    def replace(layer):
        seen.append(layer)
        return layers.GroupNormalization(1) if layer is norm else layer

    outputs = keras_bridge.replay_graph(model, doubled, replace)
    again = keras.Model(other, outputs)
    assert seen.count(shared) == 1
    data = rng.random((2, 3), "float32")
    twice = 2 * data
    group = next(layer for layer in again.layers if isinstance(layer, layers.GroupNormalization))
    expected = shared(group(shared(twice))) + twice
    np.testing.assert_allclose(again(data), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.History(),
        keras.callbacks.EarlyStopping(),
        keras.callbacks.ReduceLROnPlateau(),
        keras.callbacks.ModelCheckpoint("model.keras", save_best_only=True),
        keras.callbacks.SwapEMAWeights(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_keep_their_state_where_checkpoints_look_for_it(callback):
    callback.on_train_begin()
    names = keras_bridge.callback_state_names(callback)
    assert names
    assert all(hasattr(callback, name) for name in names)


def test_a_divided_optimizer_knows_its_variables_among_those_of_the_whole():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(4)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    paths = [variable.path for variable in model.variables]
    groups = [model.trainable_variables[2:], model.trainable_variables[:2]]
    for group, (part, places) in zip(
        groups, keras_bridge.divided_optimizer(optimizer, groups, clipnorm=None), strict=True
    ):
        found = [optimizer.variables[place] for place in places]
        assert [v.shape for v in found] == [v.shape for v in part.variables]
        slots = [variable for variable in found if variable.shape]
        assert {tuple(v.shape) for v in slots} == {tuple(v.shape) for v in group}
        assert all(variable._value is None for variable in part.variables)
    assert [variable.path for variable in model.variables] == paths


def test_a_layer_forgets_the_losses_that_it_has_added():
    layer = keras.layers.ActivityRegularization(l2=1.0)
    with keras.StatelessScope(collect_losses=True) as scope:
        layer(np.ones((1, 2), "float32"))
        assert len(scope.losses) == 1
        keras_bridge.forget_losses([layer])
        assert scope.losses == []
