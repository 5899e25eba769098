"""Stages of subclassed models."""

import contextlib

import convoy
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from convoy.pipeline.stages import stage_assignment
from keras import layers


class Twice(keras.Model):
    """Two layers, each in a stage of its own; tests replace what it computes."""

    def __init__(self, stages=(None, None)):
        super().__init__()
        self.first, self.second = (
            self.make(name, stage) for name, stage in zip(("first", "second"), stages, strict=True)
        )

    def make(self, name, stage):
        with contextlib.nullcontext() if stage is None else convoy.PipelineStage(stage):
            return layers.Dense(4, name=name)

    def call(self, x):
        with convoy.PipelineStage(0):
            x = self.first(x)
        with convoy.PipelineStage(1):
            return self.second(x)


def built(model):
    model(np.zeros((1, 4), "float32"))
    return model


def test_calls_in_blocks_are_of_their_stage():
    assert stage_assignment(built(Twice())) == [0, 1]


def test_layers_made_in_blocks_take_their_stage_along():
    class Made(Twice):
        def call(self, x):
            return self.second(self.first(x))

    assert stage_assignment(built(Made(stages=(0, 1)))) == [0, 1]


def test_operations_and_nested_models_are_in_stages_too():
    class Deep(Twice):
        def __init__(self):
            super().__init__()
            self.inner = keras.Sequential([keras.Input((4,)), *map(layers.Dense, (4, 4))])

        def call(self, x):
            with convoy.PipelineStage(0):
                x = keras.ops.relu(self.inner(x)) + x
            with convoy.PipelineStage(1):
                return {"out": self.second(self.first(x))}

    assert stage_assignment(built(Deep())) == [0, 0, 0, 0, 1, 1]


def test_a_model_without_blocks_stays_in_one_piece():
    class Plain(Twice):
        def call(self, x):
            return self.second(jnp.tanh(self.first(x)))

    with convoy.PipelineStage(0):
        pass
    assert stage_assignment(built(Plain())) is None


def test_is_cut_by_names_once_it_is_built(rng):
    class Plain(Twice):
        def call(self, x):
            return self.second(self.first(x))

    x = rng.normal(size=(8, 4)).astype("float32")
    with convoy.Strategy(devices=2).scope():
        model = Plain()
    with pytest.raises(ValueError, match=r"was not built.*example model\(x\[:1\]\)"):
        convoy.split(model, ["second"])
    whole = model.predict(x, verbose=0)
    convoy.split(model, ["second"])
    assert model.get_pipeline_stage_assignment() == [0, 1]
    np.testing.assert_allclose(model.predict(x, verbose=0), whole, rtol=1e-6)


def by_jax(self, x):
    return self.second(jnp.tanh(self.first(x)))


def nothing(self, x):
    self.first(x)
    return self.second(x)


def a_constant(self, x):
    return self.second(self.first(x)), jnp.ones(3)


def only_in_training(self, x, training=None):
    x = self.second(self.first(x))
    return self.second(x) if training else x


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (by_jax, r"call\(\) cannot be traced with symbolic tensors"),
        (nothing, "calls 'first', but returns nothing that depends on it"),
        (a_constant, "that is not the output of a layer"),
        (only_in_training, "makes other calls in training"),
    ],
)
def test_says_why_a_call_has_no_stages(call, match):
    model = built(type("Own", (Twice,), {"call": call})(stages=(0, 1)))
    with pytest.raises(ValueError, match=match):
        stage_assignment(model)


class OnlyAround(keras.Model):
    """Calls a model that is in stages by itself; tests replace how."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner or Twice()

    def call(self, x):
        return self.inner(x)


class Around(OnlyAround):
    """Has layers of its own before and after it."""

    def __init__(self, inner=None):
        super().__init__(inner)
        self.before, self.after = layers.Dense(4), layers.Dense(4)

    def call(self, x):
        with convoy.PipelineStage(0):
            x = self.before(x)
        x = self.inner(x)
        with convoy.PipelineStage(1):
            return keras.ops.tanh(self.after(x))


def test_a_nested_model_brings_its_own_stages():
    assert stage_assignment(built(OnlyAround())) == [0, 1]
    assert stage_assignment(built(Around())) == [0, 0, 1, 1, 1]
    assert stage_assignment(built(OnlyAround(Around()))) == [0, 0, 1, 1, 1]
    inputs = keras.Input((4,))
    assert stage_assignment(keras.Model(inputs, OnlyAround()(inputs))) == [0, 1]


def test_layers_of_a_nested_model_take_their_stage_along():
    class Made(Twice):
        def call(self, x):
            return self.second(self.first(x))

    assert stage_assignment(built(OnlyAround(Made(stages=(0, 1))))) == [0, 1]


def test_a_nested_model_without_stages_stays_whole():
    class Plain(Twice):
        def call(self, x):
            return self.second(jnp.tanh(self.first(x)))

    class Marked(Around):
        def call(self, x):
            with convoy.PipelineStage(0):
                x = self.inner(self.before(x))
            with convoy.PipelineStage(1):
                return self.after(x)

    assert stage_assignment(built(Marked(Plain()))) == [0, 0, 1]
    with pytest.raises(ValueError, match="'plain_1' has no stage, but others have"):
        stage_assignment(built(Around(Plain())))


def test_blocks_inside_of_blocks_or_layers_are_refused():
    class Inside(OnlyAround):
        def call(self, x):
            with convoy.PipelineStage(0):
                return self.inner(x)

    class Layer(layers.Layer):
        def __init__(self):
            super().__init__()
            self.own = layers.Dense(4)

        def call(self, x):
            with convoy.PipelineStage(1):
                return self.own(x)

    with pytest.raises(RuntimeError, match="is inside of PipelineStage"):
        built(Inside())
    with pytest.raises(ValueError, match="inside of layers or models that its call"):
        stage_assignment(built(OnlyAround(Layer())))


def test_dicts_go_in_and_out_and_dropout_draws_the_same_in_stages(rng):
    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.left, self.right = layers.Dense(4), layers.Dense(4)
            self.drop = layers.Dropout(0.5, seed=1)
            self.out = layers.Dense(2)

        def call(self, inputs, training=None):
            with convoy.PipelineStage(0):
                x = self.drop(self.left(inputs["a"]), training=training)
            with convoy.PipelineStage(1):
                x = layers.add([x, self.right(inputs["b"])])
                return {"y": self.out(x), "z": keras.ops.sum(x, -1)}

    data = {name: rng.normal(size=(16, 3)).astype("float32") for name in "ab"}
    targets = {"y": np.ones((16, 2), "float32"), "z": np.ones(16, "float32")}
    found = []
    for pieces in (1, 2):
        keras.utils.set_random_seed(0)
        with convoy.Strategy(devices=pieces, gradient_accumulation=2).scope():
            model = Pair()
            model.compile("sgd", {"y": "mse", "z": "mse"}, steps_per_execution=2)
        if pieces == 1:
            model({name: values[:1] for name, values in data.items()})
            model.reset_pipeline_stage_assignment()
        history = model.fit(data, targets, batch_size=4, shuffle=False, verbose=0).history
        found.append((history, model.predict(data, verbose=0)))
    (one, whole), (two, staged) = found
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)
    for name in ("y", "z"):
        np.testing.assert_allclose(staged[name], whole[name], rtol=1e-5, atol=1e-6)


def test_weights_outside_of_layers_are_refused():
    class Own(Twice):
        def build(self, shape):
            self.factor = self.add_weight(name="factor")
            super().build(shape)

        def call(self, x):
            return super().call(x) * self.factor

    with pytest.raises(ValueError, match=r"Weight '.*factor' of Own belongs to no layer"):
        stage_assignment(built(Own()))


def test_data_of_unknown_shape_needs_a_model_that_is_built():
    def batches():
        while True:
            yield np.zeros((4, 4), "float32"), np.zeros((4, 4), "float32")

    with convoy.Strategy(devices=2).scope():
        model = Twice()
        model.compile("sgd", "mse")
    with pytest.raises(
        ValueError, match=r"has pipeline stages.* Call the model on some inputs first"
    ):
        model.fit(batches(), steps_per_epoch=1, shuffle=False, verbose=0)
    model.fit(batches(), steps_per_epoch=1, shuffle=False, verbose=0)
    assert model.get_pipeline_stage_assignment() == [0, 1]
