"""Several views of each image, and one opinion of all of them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

SHIFT = 1
WEIGHTS = {1: (1.0,), 2: (0.5, 0.5), 6: (0.25, 0.25, 0.125, 0.125, 0.125, 0.125)}
"""How much each view counts, by how many there are."""


@keras.saving.register_keras_serializable(package="convoy")
class Views(layers.Layer):
    """Turns each image into several, one after the other.

    With two, the image and its mirror image. With six, also both of them from the image shifted by
    a pixel down and to the right, and up and to the left, with a reflected border.

    Args:
        count: 1, 2 or 6.
        **kwargs: those of a layer.
    """

    def __init__(self, count: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = count

    def call(self, images: Any) -> Any:
        _, height, width, _ = images.shape
        seen = [images]
        if self.count == 6:
            border = ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0))
            padded = ops.pad(images, border, "reflect")
            for first in (0, 2 * SHIFT):
                seen.append(padded[:, first : first + height, first : first + width])
        if self.count > 1:
            seen = [view for image in seen for view in (image, ops.flip(image, 2))]
        return ops.reshape(ops.stack(seen, 1), (-1, *images.shape[1:]))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"count": self.count}


@keras.saving.register_keras_serializable(package="convoy")
class MeanOfViews(layers.Layer):
    """Averages what a network says of the views of an image, before its softmax.

    It is given what comes after that: the logarithms of probabilities are the logits, but for a
    number that the views' mean and its softmax leave out.

    Args:
        count: how many views there are of each image: 1, 2 or 6.
        **kwargs: those of a layer.
    """

    def __init__(self, count: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = count

    def call(self, probabilities: Any) -> Any:
        classes = probabilities.shape[-1]
        least = float(np.finfo(np.float32).tiny)
        logits = ops.log(ops.maximum(ops.cast(probabilities, "float32"), least))
        weights = ops.reshape(ops.array(WEIGHTS[self.count], "float32"), (1, -1, 1))
        mean = ops.sum(ops.reshape(logits, (-1, self.count, classes)) * weights, 1)
        return ops.cast(ops.softmax(mean), self.compute_dtype)

    def compute_output_spec(self, probabilities: Any) -> keras.KerasTensor:
        # JAX cannot know that there are as many views as there should be.
        return keras.KerasTensor((None, *probabilities.shape[1:]), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"count": self.count}
