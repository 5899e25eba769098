"""Handwritten digits on two replicas of the model.

    python3 completed_demos/completed_demo_replicated.py

Expected: about 0.93 training accuracy after 3 epochs.
"""

from convoy import ipu  # before keras: selects its JAX backend

import keras  # isort: skip
import numpy as np

BATCH_SIZE = 64
CLASSES = 10
REPLICAS = 2


def prepare(images: np.ndarray, labels: np.ndarray) -> tuple:
    """Keep what fills whole steps, scale the pixels, and make labels rows of 0 and 1."""
    size = len(images) - len(images) % (BATCH_SIZE * REPLICAS)
    images = np.expand_dims(images[:size].astype("float32") / 255, -1)
    return images, keras.utils.to_categorical(labels[:size], CLASSES)


def model_fn() -> tuple:
    inputs = keras.Input((28, 28, 1))
    x = keras.layers.Conv2D(32, 3, activation="relu")(inputs)
    x = keras.layers.MaxPooling2D(2)(x)
    x = keras.layers.Conv2D(64, 3, activation="relu")(x)
    x = keras.layers.MaxPooling2D(2)(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dropout(0.5)(x)
    return inputs, keras.layers.Dense(CLASSES, activation="softmax")(x)


print("Keras MNIST example, running on IPU with replication")
config = ipu.config.IPUConfig()
config.auto_select_ipus = REPLICAS
config.configure_ipu_system()

train, test = keras.datasets.mnist.load_data()
x_train, y_train = prepare(*train)
x_test, y_test = prepare(*test)

strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    model = keras.Model(*model_fn())
    model.compile(
        "sgd",
        "categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=len(x_train) // (BATCH_SIZE * REPLICAS),
    )
    model.summary()

    print("\nTraining")
    model.fit(x_train, y_train, epochs=3, batch_size=BATCH_SIZE)

    print("\nEvaluation")
    model.evaluate(x_test, y_test, batch_size=BATCH_SIZE)

print("Program ran successfully")
