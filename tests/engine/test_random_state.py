"""The host's random generators can be taken down and put back."""

import json
import random

import keras
import numpy as np
from convoy.engine import random_state
from convoy.engine.random_state import RandomState


def draw():
    drawn = [random.random(), random.gauss(0, 1), np.random.normal(), np.random.randint(1000)]
    return [*drawn, float(keras.random.uniform(()))]


def test_what_is_drawn_after_a_state_is_put_back_is_the_same_again():
    draw()
    state = random_state.capture()
    expected = draw()
    draw()
    written = json.loads(json.dumps(state.to_json()))
    random_state.restore(RandomState.from_json(written))
    assert draw() == expected


def test_a_block_draws_from_the_past_and_leaves_the_present_alone():
    past = random_state.capture()
    first = draw()
    present = random_state.capture()
    with random_state.as_of(past):
        assert draw() == first
    after = draw()
    random_state.restore(present)
    assert draw() == after
