"""What the labels of data sets stand for."""

from __future__ import annotations

_DIGITS = tuple("0123456789")

CLASS_NAMES = {
    "mnist": _DIGITS,
    "digits": _DIGITS,
    "fashion_mnist": (
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    "cifar10": (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
}
