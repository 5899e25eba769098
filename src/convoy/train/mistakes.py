"""The confusion matrix of a validated network, and images of its worst mistakes."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
from convoy.data.image_files import Folder, ImageFiles
from convoy.report.files import CLASSIFICATION, write
from convoy.train.input import Split
from convoy.types import Json

MAX_CLASSES = 100
"""Maximum number of classes that fit on a page."""
MAX_MISTAKES = 24
_SIDE = 112


def write_classification(
    folder: Path, images: Split | ImageFiles, probabilities: np.ndarray, names: tuple[str, ...]
) -> None:
    """Write the confusion matrix and the worst mistakes for `convoy report`.

    Nothing is written for record files, whose labels are known only when they are read, and for
    more than `MAX_CLASSES` classes.

    Args:
        folder: folder of the report.
        images: the images that were validated.
        probabilities: probability of each class for each image.
        names: names of the classes; numbers are used if the names are unknown.
    """
    classes = probabilities.shape[1]
    labels = _labels(images)
    if labels is None or classes > MAX_CLASSES:
        return
    predicted = probabilities.argmax(axis=1)
    matrix = np.zeros((classes, classes), int)
    np.add.at(matrix, (labels, predicted), 1)
    content = {
        "class_names": list(names) or [str(number) for number in range(classes)],
        "matrix": matrix.tolist(),
        "mistakes": _mistakes(images, labels, predicted, probabilities),
    }
    write(folder / CLASSIFICATION, content)


def _labels(images: Split | ImageFiles) -> np.ndarray | None:
    if isinstance(images, tuple):
        return images[1]
    return images.labels if isinstance(images, Folder) else None


def _mistakes(
    images: Split | ImageFiles, labels: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray
) -> list[Json]:
    """Return the mistakes in which the wrong class had the highest probabilities."""
    (wrong,) = np.nonzero(predicted != labels)
    certainty = probabilities.max(axis=1)
    worst = sorted(wrong, key=lambda place: -certainty[place])[:MAX_MISTAKES]
    return [
        {
            "name": f"image {place}" if isinstance(images, tuple) else images.name(int(place)),
            "label": int(labels[place]),
            "predicted": int(predicted[place]),
            "probability": float(certainty[place]),
            "picture": _thumbnail(images, int(place)),
        }
        for place in worst
    ]


def _thumbnail(images: Split | ImageFiles, place: int) -> str | None:
    """Return a small copy of an image as a data URL; `None` if OpenCV is missing or cannot read it.

    An image of fewer pixels keeps its size, and the browser enlarges it.
    """
    try:
        import cv2
    except ImportError:
        return None
    pixels: Any
    if isinstance(images, tuple):
        pixels = np.asarray(images[0][place])[..., ::-1]
    else:
        data = np.frombuffer(images.read(place).data, np.uint8)
        pixels = cv2.imdecode(data, cv2.IMREAD_COLOR)
    if pixels is None:
        return None
    scale = _SIDE / max(pixels.shape[:2])
    if scale < 1:
        size = (max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    _, encoded = cv2.imencode(".png", np.ascontiguousarray(pixels))
    return f"data:image/png;base64,{base64.b64encode(encoded.tobytes()).decode()}"
