"""Settings of reduced precision, and the variables that they need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.engine.numerics.loss_scale import AutomaticLossScale, StaticLossScale
from convoy.engine.numerics.numerics import Numerics, Settings, pack, split_key, unpack


def values(numerics):
    return [jnp.asarray(variable.value) for variable in numerics.variables]


def test_there_are_no_variables_without_loss_scale_and_rounding():
    numerics = Numerics(Settings())
    assert numerics.variables == []
    assert numerics.loss_scale_state is None
    assert numerics.loss_scale([]) is None
    assert numerics.logs([]) == {}
    assert numerics.count([], [jnp.ones(2)], []) == []


def test_the_variables_are_made_once_and_begin_with_the_initial_scale():
    numerics = Numerics(Settings(loss_scaling=StaticLossScale(8.0)))
    assert numerics.variables is numerics.variables
    assert numerics.loss_scale_state.loss_scale == 8
    assert numerics.loss_scale(values(numerics)) == 8
    assert numerics.logs(values(numerics)) == {"loss_scaling_factor": 8, "skipped_updates": 0}


def test_large_gradients_are_counted():
    numerics = Numerics(Settings(loss_scaling=AutomaticLossScale(edge=10.0)))
    counted = numerics.count(values(numerics), [jnp.array([1.0, 11.0, jnp.inf])], [])
    state, _ = unpack(counted)
    assert (state.large, state.counted) == (2, 3)


def test_rounding_alone_has_a_key_but_no_loss_scale():
    numerics = Numerics(Settings(stochastic_rounding="on"))
    assert numerics.settings.rounds
    assert numerics.loss_scale_state is None
    assert len(numerics.variables) == 7
    assert numerics.logs(values(numerics)) == {}


def test_a_key_is_split_into_one_to_carry_and_one_to_draw_from():
    *state, key = values(Numerics(Settings(stochastic_rounding="on")))
    carried, use = split_key(key)
    assert not np.array_equal(carried, key)
    assert not np.array_equal(jax.random.key_data(use), carried)
    found, same = unpack(pack(unpack([*state, key])[0], carried))
    assert same is carried
    assert list(found) == state


def test_the_same_seed_gives_the_same_key(rng):
    first, second = (Numerics(Settings(stochastic_rounding="on")) for _ in range(2))
    assert np.array_equal(values(first)[-1], values(second)[-1])


def test_a_way_to_round_must_be_known():
    with pytest.raises(ValueError, match=r"'never' is unknown\. Pass one of 'off', 'on'"):
        Settings(stochastic_rounding="never")
