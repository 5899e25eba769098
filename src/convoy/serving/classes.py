"""Outputs as classes with scores, or as values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from convoy.serving.errors import invalid
from convoy.serving.signature import Arrays


def classes_of(outputs: Arrays, names: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the classes' labels, empty if they have none, and a score of each for every sample.

    Raises:
        ServingError: if the model does not return scores of classes.
    """
    values = list(outputs.values())
    if len(values) != 1 or values[0].ndim != 2 or values[0].dtype.kind in "iub":
        raise invalid("Expected a classification signature: one output with a score per class.")
    labels = list(names) if names else [""] * values[0].shape[1]
    return labels, values[0]


def value_of(outputs: Arrays) -> np.ndarray:
    """Return one value for every sample.

    Raises:
        ServingError: if the model returns more.
    """
    values = list(outputs.values())
    if len(values) != 1 or values[0].size != len(values[0]):
        raise invalid("Expected a regression signature: one output with one value per sample.")
    return values[0].reshape(-1)
