"""Stages one after the other are the model: outputs, gradients, statistics, losses."""

import itertools

import jax
import keras
import numpy as np
import pytest
from convoy.keras_bridge import graph_inputs, graph_outputs
from convoy.pipeline.stages import calls_of, check_assignment, make_stages
from keras import layers
from tests.equivalence.side_by_side import assert_same

pytestmark = pytest.mark.integration


class Penalty(layers.Layer):
    def call(self, inputs):
        self.add_loss(0.1 * keras.ops.mean(inputs**2))
        return inputs


def chain():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.7),
            layers.ReLU(),
            Penalty(),
            layers.Dropout(0.4, seed=1),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, activity_regularizer="l2"),
        ]
    )


def long_skips():
    inputs = keras.Input((8, 8, 3))
    first = layers.Conv2D(4, 3, padding="same")(inputs)
    down = layers.MaxPooling2D(2)(first)
    middle = layers.Conv2D(4, 3, padding="same", activation="tanh")(down)
    up = layers.Concatenate()([layers.UpSampling2D(2)(middle), first])
    return keras.Model(inputs, layers.Conv2D(2, 1)(layers.Concatenate()([up, inputs])))


def several():
    left, right = keras.Input((8, 8, 3), name="left"), keras.Input((4,), name="right")
    x = layers.Flatten()(layers.Conv2D(2, 3)(left))
    both = layers.Concatenate()([layers.Dense(4)(x), right])
    return keras.Model([left, right], [layers.Dense(2)(both), layers.Dense(3)(x), right])


def nested():
    inner = keras.Sequential([keras.Input((8, 8, 4)), layers.Conv2D(4, 3), layers.ReLU()])
    inputs = keras.Input((8, 8, 3))
    x = inner(layers.Conv2D(4, 3, padding="same")(inputs))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))


def nested_twice():
    """A nested model that runs twice, with a nested one inside, and a skip into it."""
    deep = keras.Sequential([keras.Input((4,)), layers.Dense(4, "tanh"), Penalty()], name="deep")
    left, right = keras.Input((4,), name="l"), keras.Input((4,), name="r")
    both = layers.Add()([deep(left), right])
    inner = keras.Model([left, right], [both, layers.Dense(4)(both)], name="inner")
    inputs = keras.Input((4,))
    one, two = inner([layers.Dense(4)(inputs), inputs])
    return keras.Model(inputs, inner([two, one]))


MODELS = [chain, long_skips, several, nested, nested_twice]


def assignments(count):
    """Return all cuts into one, two and three stages."""
    for stages in (1, 2, 3):
        for cuts in itertools.combinations(range(1, count), stages - 1):
            yield [sum(i >= cut for cut in cuts) for i in range(count)]


def values(variables):
    return [v.value for v in variables]


def total(outputs, losses):
    return sum((o**2).sum() for o in outputs) + sum(losses)


def whole(model, x, training=True):
    def loss(trainable, non_trainable):
        outputs, new, losses = model.stateless_call(
            trainable, non_trainable, x, training=training, return_losses=True
        )
        outputs = keras.tree.flatten(outputs)
        return total(outputs, losses), (outputs, new)

    parts = values(model.trainable_variables), values(model.non_trainable_variables)
    (value, (outputs, new)), gradients = jax.value_and_grad(loss, has_aux=True)(*parts)
    by_path = lambda variables, arrays: {  # noqa: E731
        v.path: np.asarray(a) for v, a in zip(variables, arrays, strict=True)
    }
    return (
        np.asarray(value),
        [np.asarray(o) for o in outputs],
        by_path(model.trainable_variables, gradients) | by_path(model.non_trainable_variables, new),
    )


def staged(model, stages, x, training=True):
    def loss(trainable):
        tensors = dict(zip(graph_inputs(model), keras.tree.flatten(x), strict=True))
        losses, new = [], []
        for stage, weights in zip(stages, trainable, strict=True):
            outputs, state, added = stage.forward(
                weights, values(stage.non_trainable), tensors, training=training
            )
            tensors |= outputs
            losses += added
            new.append(state)
        outputs = [tensors[i] for i in graph_outputs(model)]
        return total(outputs, losses), (outputs, new)

    weights = [values(stage.trainable) for stage in stages]
    (value, (outputs, new)), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
    found = {}
    for stage, own, state in zip(stages, gradients, new, strict=True):
        for variable, gradient in zip(stage.trainable, own, strict=True):
            # That of a layer that runs in several stages is the sum of theirs.
            found[variable.path] = found.get(variable.path, 0) + np.asarray(gradient)
        found |= {v.path: np.asarray(a) for v, a in zip(stage.non_trainable, state, strict=True)}
    return np.asarray(value), [np.asarray(o) for o in outputs], found


@pytest.mark.parametrize("make", MODELS)
def test_every_cut_gives_the_whole_model(make, rng):
    model = make()
    x = [rng.normal(size=(2, *i.shape[1:])).astype("float32") for i in model.inputs]
    x = x if len(x) > 1 else x[0]
    value, outputs, variables = whole(model, x)
    calls = calls_of(model)
    for assignment in assignments(len(calls)):
        check_assignment(calls, assignment)
        stages = make_stages(model, calls, assignment)
        found = staged(model, stages, x)
        assert_same(found[:2], (value, outputs))
        assert_same({path: found[2][path] for path in variables}, variables)


def test_a_stage_has_its_own_variables_only(rng):
    model = chain()
    calls = calls_of(model)
    first, second = make_stages(model, calls, [0, 0, 0, 1, 1, 1, 1])
    paths = [[v.path for v in stage.variables] for stage in (first, second)]
    assert not set(paths[0]) & set(paths[1])
    assert len(first.inputs) == len(first.outputs) == len(second.inputs) == 1


def four_layers():
    x = inputs = keras.Input((8,), name="in")
    for number in range(4):
        x = layers.Dense(8, name=f"dense{number}")(x)
    return keras.Model(inputs, x, name="net")


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([0, 0, 1], "3 stages were given for 4 layers"),
        ([0, None, 1, 1], "'dense1' has no stage, but others have"),
        ([0, -1, 1, 1], "'dense1' has stage -1. Number stages from 0"),
        ([0, 1, 0, 1], "'dense2' of stage 0 reads the output of 'dense1' of stage 1"),
        ([0, 0, 2, 2], "Stage 1 has no layer, but layer 'dense2' has stage 2"),
    ],
)
def test_an_assignment_that_cannot_be_run_is_refused(stages, message):
    with pytest.raises(ValueError, match=message):
        check_assignment(calls_of(four_layers()), stages)
