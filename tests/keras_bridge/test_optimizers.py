"""Optimizers for parts of the weights."""

import keras
from convoy import keras_bridge


def test_a_divided_optimizer_knows_its_variables_among_those_of_the_whole():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(4)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    paths = [variable.path for variable in model.variables]
    groups = [model.trainable_variables[2:], model.trainable_variables[:2]]
    for group, (part, places) in zip(
        groups, keras_bridge.split_optimizer(optimizer, groups, clipnorm=None), strict=True
    ):
        found = [optimizer.variables[place] for place in places]
        assert [v.shape for v in found] == [v.shape for v in part.variables]
        slots = [variable for variable in found if variable.shape]
        assert {tuple(v.shape) for v in slots} == {tuple(v.shape) for v in group}
        assert all(variable._value is None for variable in part.variables)
    assert [variable.path for variable in model.variables] == paths
