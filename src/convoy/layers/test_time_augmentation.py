"""Test-time augmentation: several views of each image, and the average of their predictions."""

import keras
import numpy as np
from convoy.types import Json, Tensor
from keras import layers, ops

SHIFT = 1
WEIGHTS = {1: (1.0,), 2: (0.5, 0.5), 6: (0.25, 0.25, 0.125, 0.125, 0.125, 0.125)}
"""Weight of each view, by the number of views."""


class _LayerOfViews(layers.Layer):
    """A layer whose argument is the number of views of each image."""

    def __init__(self, count: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.count = count

    def get_config(self) -> Json:
        return super().get_config() | {"count": self.count}


@keras.saving.register_keras_serializable(package="convoy")
class Views(_LayerOfViews):
    """Replaces each image by several views of it.

    Two views are the image and its horizontal flip. Six views are both of these, and those of the
    image shifted by one pixel down and right, and up and left, with a reflected border.

    Args:
        count: number of views: 1, 2 or 6.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    def call(self, images: Tensor) -> Tensor:
        _, height, width, _ = images.shape
        views = [images]
        if self.count == 6:
            border = ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0))
            padded = ops.pad(images, border, "reflect")
            for first in (0, 2 * SHIFT):
                views.append(padded[:, first : first + height, first : first + width])
        if self.count > 1:
            views = [view for image in views for view in (image, ops.flip(image, 2))]
        return ops.reshape(ops.stack(views, 1), (-1, *images.shape[1:]))


@keras.saving.register_keras_serializable(package="convoy")
class MeanOfViews(_LayerOfViews):
    """Averages the logits of the views of each image.

    Its inputs are probabilities. Their logarithms are the logits up to a constant for each view,
    which does not change the softmax of the mean.

    Args:
        count: number of views of each image: 1, 2 or 6.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    def call(self, probabilities: Tensor) -> Tensor:
        classes = probabilities.shape[-1]
        least = float(np.finfo(np.float32).tiny)
        logits = ops.log(ops.maximum(ops.cast(probabilities, "float32"), least))
        weights = ops.reshape(ops.array(WEIGHTS[self.count], "float32"), (1, -1, 1))
        mean = ops.sum(ops.reshape(logits, (-1, self.count, classes)) * weights, 1)
        return ops.cast(ops.softmax(mean), self.compute_dtype)

    def compute_output_spec(self, probabilities: Tensor) -> keras.KerasTensor:
        # The batch size is not known to be a multiple of the number of views.
        return keras.KerasTensor((None, *probabilities.shape[1:]), self.compute_dtype)
