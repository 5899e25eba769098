"""What variables and generators of random numbers hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import keras
import numpy as np
from keras import Model
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.utils import rng_utils

Variables = list[keras.Variable]


def values(variables: Variables) -> list[jax.Array]:
    return [variable._value for variable in variables]


def assign(variables: Variables, new_values: list[jax.Array]) -> None:
    """Set variables without the conversion and the checks that `Variable.assign` makes."""
    for variable, value in zip(variables, new_values, strict=True):
        variable._value = value


def seed_variables(model: Model) -> set[int]:
    """Return the ids of the variables that are the state of a random number generator."""
    return {
        id(generator.state)
        for layer in model._flatten_layers()
        for generator in layer._seed_generators
    }


@contextlib.contextmanager
def held_in(dtype: str, variables: Variables) -> Iterator[None]:
    """Have what is traced in the block see variables of another type.

    An optimizer casts to the type of the variable that it updates, and a variable casts what is
    assigned to it. So this is how its update is computed in that type.
    """
    before = [variable._dtype for variable in variables]
    for variable in variables:
        variable._dtype = dtype
    try:
        yield
    finally:
        for variable, own in zip(variables, before, strict=True):
            variable._dtype = own


def updated_variables(optimizer: keras.optimizers.Optimizer) -> Variables:
    """Return the weights that an optimizer was built for, and those of the one that it wraps."""
    return list(optimizer._trainable_variables)


def random_seed() -> int | None:
    """Return the seed that `keras.utils.set_random_seed` was told last, without drawing from it."""
    return rng_utils.get_random_seed()


def global_seed() -> list[int] | None:
    """Return the state of the generator that unseeded random operations draw from, if it is."""
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    return None if generator is None else np.asarray(generator.state.value).tolist()


def set_global_seed(state: list[int] | None) -> None:
    if state is None:
        global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
    else:
        seed_generator.global_seed_generator().state.assign(state)
