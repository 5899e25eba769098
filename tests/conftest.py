"""Strict settings for every test: four devices, nothing kept from earlier runs."""

import os

os.environ["CONVOY_COMPILATION_CACHE"] = "0"

import convoy  # noqa: F401 - chooses the backend of Keras
import jax
import keras
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture(autouse=True)
def fresh_start():
    """Every test names its layers from the start, and draws from the same random numbers."""
    # Without a collection of garbage, which would take a fifth of all the time.
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
