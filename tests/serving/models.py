"""Small models to export."""

import keras
import numpy as np

CLASSES = tuple("abcde")


def half_plus(offset):
    x = keras.Input((), name="x")
    return keras.Model(x, keras.layers.Rescaling(0.5, offset)(x))


def classifier():
    """A small network of all that is folded: convolutions, batch norms, a residual addition."""
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(image)
    x = first = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Conv2D(8, 3, padding="same")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.ReLU()(keras.layers.Add()([x, first]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(image, keras.layers.Dense(len(CLASSES), activation="softmax")(x))
    rng = np.random.default_rng(1)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            low, high = [0.5, -0.5, -0.5, 0.5], [2.0, 0.5, 0.5, 2.0]
            shapes = [value.shape for value in layer.get_weights()]
            layer.set_weights(
                [rng.uniform(a, b, s) for a, b, s in zip(low, high, shapes, strict=True)]
            )
    return model
