"""Handwritten digits with a model in two stages.

    python3 completed_demos/completed_demo_pipelining.py

Expected: about 0.93 training accuracy after 3 epochs.
"""

from convoy import ipu  # before keras: selects its JAX backend

import keras  # isort: skip
import numpy as np

BATCH_SIZE = 64
CLASSES = 10
STAGES = 2
ACCUMULATION = 8


def prepare(images: np.ndarray, labels: np.ndarray) -> tuple:
    """Keep what fills whole weight updates, scale the pixels, and make labels rows of 0 and 1."""
    size = len(images) - len(images) % (BATCH_SIZE * ACCUMULATION)
    images = np.expand_dims(images[:size].astype("float32") / 255, -1)
    return images, keras.utils.to_categorical(labels[:size], CLASSES)


def model_fn() -> tuple:
    inputs = keras.Input((28, 28, 1))
    with ipu.keras.PipelineStage(0):
        x = keras.layers.Conv2D(32, 3, activation="relu")(inputs)
        x = keras.layers.MaxPooling2D(2)(x)
        x = keras.layers.Conv2D(64, 3, activation="relu")(x)
    with ipu.keras.PipelineStage(1):
        x = keras.layers.MaxPooling2D(2)(x)
        x = keras.layers.Flatten()(x)
        x = keras.layers.Dropout(0.5)(x)
        x = keras.layers.Dense(CLASSES, activation="softmax")(x)
    return inputs, x


print("Keras MNIST example, running on IPU with pipelining")
config = ipu.config.IPUConfig()
config.auto_select_ipus = STAGES
config.configure_ipu_system()

train, test = keras.datasets.mnist.load_data()
x_train, y_train = prepare(*train)
x_test, y_test = prepare(*test)

strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    model = keras.Model(*model_fn())
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=ACCUMULATION,
        pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Grouped,
    )
    model.compile(
        "sgd",
        "categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=len(x_train) // BATCH_SIZE,
    )
    model.summary()

    print("\nTraining")
    model.fit(x_train, y_train, epochs=3, batch_size=BATCH_SIZE)

    print("\nEvaluation")
    model.evaluate(x_test, y_test, batch_size=BATCH_SIZE)

print("Program ran successfully")
