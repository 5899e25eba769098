"""Every class of `keras.layers` that can stand in a model trains as in stock Keras.

Augmentation layers have the same test in `test_augmentation.py`.
"""

import pytest

from .layer_cases import (
    CANNOT_STAND_IN_A_MODEL,
    CASES,
    COVERED,
    data,
    groups,
    network,
    public_classes,
)
from .side_by_side import assert_equivalent

GROUPS = groups()
SLOW = ("Conv3D", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "LSTM")


def test_every_public_class_has_a_case():
    """A release of Keras with a new layer fails here until the layer has a case or a reason."""
    classes = set(public_classes())
    assert classes - set(COVERED) - set(CANNOT_STAND_IN_A_MODEL) == set()
    assert (set(COVERED) | set(CANNOT_STAND_IN_A_MODEL)) - classes == set()


def marked(group):
    """Return a group as a parameter of a test, as slow if its layers take long to compile."""
    slow = any(name in SLOW for name in GROUPS[group])
    return pytest.param(group, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("group", [marked(group) for group in GROUPS])
def test_two_steps_of_all_layers_that_take_the_same_input(group):
    names = GROUPS[group]
    assert_equivalent(network(names), fit(*data(names[0])), steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_layer_by_itself(name):
    x, y = data(name)

    def run(model):
        history = fit(x, y)(model)
        evaluated = model.evaluate(x, y, batch_size=4, verbose=0)
        return history, evaluated, model.predict(x, batch_size=4, verbose=0)

    assert_equivalent(network([name]), run, steps=2)


def fit(x, y):
    def run(model):
        return model.fit(x, y, batch_size=4, shuffle=False, verbose=0).history

    return run
