"""A tiny network for `convoy train` with layers of the package, found by their registered names."""

import keras
from keras import layers


def convoy_class(name):
    """Return a class of Convoy by the name that saved models hold."""
    found = keras.saving.get_registered_object(f"convoy>{name}")
    assert found is not None, f"convoy>{name} is not registered"
    return found


def make(shape, classes):
    images = keras.Input(shape)
    x = convoy_class("Whiten")(name="whiten")(images)
    x = layers.Conv2D(
        4,
        3,
        padding="same",
        use_bias=False,
        kernel_initializer=convoy_class("Dirac")(seed=1),
        name="convolution",
    )(x)
    x = layers.BatchNormalization(scale=False, center=False, name="norm")(x)
    x = convoy_class("Offset")(speed=4.0, name="offset")(x)
    x = layers.ReLU(name="relu")(x)
    x = convoy_class("Subsample")(name="subsample")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(classes, activation="softmax", name="head")(x)
    return keras.Model(images, x, name="small_network")
