"""Strict settings for every test: several devices, and no silent promotion of types."""

import os

os.environ["CONVOY_DEVICES"] = "4"
os.environ["CONVOY_COMPILATION_CACHE"] = os.environ.get("CONVOY_TEST_CACHE", "0")

import convoy  # noqa: F401 - chooses the backend of Keras
import keras
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def fresh_names():
    """Every test names its layers from the start, and draws from the same random numbers."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
