"""Random samples for benchmarks that measure only time."""

import numpy as np


def random_samples(
    count: int, shape: tuple[int, ...], outputs: int, loss: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets: numbers if the loss is `"mse"`, else class indices."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, *shape)).astype("float32")
    if loss == "mse":
        return x, rng.normal(size=(count, outputs)).astype("float32")
    return x, rng.integers(0, outputs, count).astype("int32")
