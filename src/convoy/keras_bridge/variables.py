"""Values of variables and states of random number generators.

`Variable.value` and `assign` convert, check and autocast values. Between two device calls, the
engine reads and writes hundreds of values that need none of this, so it uses the private `_value`.
"""

from contextlib import AbstractContextManager

import jax
import keras
import numpy as np
from convoy import context
from keras import Model
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.utils import rng_utils

Variables = list[keras.Variable]

# A variable refers to an array that is replaced with every device call:
#
#     variables --values()--> arrays --donated to the program--> new arrays --assign()--> variables
#
# Between the two calls a variable refers to a buffer that no longer exists.


def values(variables: Variables) -> list[jax.Array]:
    return [variable._value for variable in variables]


def assign(variables: Variables, new_values: list[jax.Array]) -> None:
    """Set variables without the conversion and the checks of `Variable.assign`."""
    for variable, value in zip(variables, new_values, strict=True):
        variable._value = value


def seed_variables(model: Model) -> set[int]:
    """Return the ids of the variables that are the state of a random number generator."""
    return {
        id(generator.state)
        for layer in model._flatten_layers()
        for generator in layer._seed_generators
    }


def variables_held_as(dtype: str, variables: Variables) -> AbstractContextManager[None]:
    """Give variables another dtype for code that is traced in the block.

    An optimizer casts its update to the dtype of the variable, and a variable casts assigned
    values. With this, an update of 16-bit weights is computed in float32.
    """
    return context.changed((variable, "_dtype", dtype) for variable in variables)


def updated_variables(optimizer: keras.optimizers.Optimizer) -> Variables:
    """Return the weights that an optimizer, or the one inside of a wrapper, was built for."""
    return list(optimizer._trainable_variables)


def random_seed() -> int | None:
    """Return the seed of the last `keras.utils.set_random_seed`, without drawing from it."""
    return rng_utils.get_random_seed()


def global_seed() -> list[int] | None:
    """Return the state of the generator of unseeded random operations, if it exists."""
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    return None if generator is None else np.asarray(generator.state.value).tolist()


def set_global_seed(state: list[int] | None) -> None:
    if state is None:
        global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
    else:
        seed_generator.global_seed_generator().state.assign(state)
