"""Small data that a model can learn something from."""

from pathlib import Path

import numpy as np
import pytest

# NumPy 2.4 deprecates what Keras 3.15 does in every `get_weights`; not Convoy's to mend.
KERAS_VARIABLE_TO_NUMPY = "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(KERAS_VARIABLE_TO_NUMPY))


@pytest.fixture(scope="session")
def images():
    """100 images of 10x10 in 10 classes, each class with a blob in a place of its own."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, 100)
    x = rng.normal(0, 0.3, (100, 10, 10, 1)).astype("float32")
    for image, label in zip(x, labels, strict=True):
        row, column = divmod(int(label), 4)
        image[3 * row : 3 * row + 3, 2 * column : 2 * column + 3] += 1.0
    return x, labels.astype("int32")


@pytest.fixture(scope="session")
def table():
    """150 rows of 6 numbers, a target that follows from them, and one of three classes."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(150, 6)).astype("float32")
    target = (x @ rng.normal(size=(6, 1)) + 0.1 * rng.normal(size=(150, 1))).astype("float32")
    classes = np.digitize(target[:, 0], [-1.0, 1.0]).astype("int32")
    return x, target, classes
