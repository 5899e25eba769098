"""The handwritten digits that ship with the package."""

from __future__ import annotations

from importlib import resources

import numpy as np

Split = tuple[np.ndarray, np.ndarray]

# Leaves 1,408 images to train on: whole batches of 64 over any usual number of replicas.
HELD_OUT = 389


def load_digits() -> tuple[Split, Split]:
    """Return 1,797 images of handwritten digits, 8 x 8 pixels, with their labels.

    The set is "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI
    Machine Learning Repository, https://doi.org/10.24432/C50P49), its test part, under the
    Creative Commons licence CC BY 4.0.

    Returns:
        `(x_train, y_train), (x_test, y_test)`: images of shape `(n, 8, 8, 1)` with values from 0
        to 1 as float32, labels as int32.
    """
    with resources.files(__package__).joinpath("digits.npz").open("rb") as file:
        stored = np.load(file)
        images = stored["images"].astype("float32")[..., None] / 16
        labels = stored["labels"].astype("int32")
    held_out = np.arange(len(images)) * HELD_OUT % len(images) < HELD_OUT  # evenly spaced
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])
