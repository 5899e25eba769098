"""Shared code of the four scripts: layers, data and flags."""

from __future__ import annotations

import convoy.data  # before keras: selects its JAX backend

import keras  # isort: skip
import numpy as np
from convoy.estimator import ArrayInput, Estimator
from convoy_command.parser import Parser

CLASSES = 10
LEARNING_RATE = 0.01


def layers() -> list[keras.layers.Layer]:
    """Return the 18 layers of the network, up to the logits."""
    return [
        keras.layers.Conv2D(32, 3, padding="same"),
        keras.layers.Activation("relu"),
        keras.layers.Conv2D(32, 3),
        keras.layers.Activation("relu"),
        keras.layers.Conv2D(32, 3),
        keras.layers.MaxPooling2D(2),
        keras.layers.Dropout(0.25),
        keras.layers.Conv2D(64, 3, padding="same"),
        keras.layers.Activation("relu"),
        keras.layers.Conv2D(64, 3),
        keras.layers.Activation("relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Dropout(0.25),
        keras.layers.Flatten(),
        keras.layers.Dense(512),
        keras.layers.Activation("relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(CLASSES),
    ]


def load_data(folder: str) -> tuple[tuple, tuple]:
    """Return training and test data: pixels from 0 to 1, and class numbers."""
    try:
        data = convoy.data.load("cifar10", folder)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    return tuple(
        (images.astype("float32") / 255, labels.astype("int32"))
        for images, labels in (data.train, data.test)
    )


def parser(description: str) -> Parser:
    """Return a parser with the flags that all scripts have."""
    made = Parser(description=description)
    made.add_argument("--batch-size", type=int, default=16, help="samples per step (16)")
    made.add_argument("--epochs", type=int, default=150, help="number of epochs (150)")
    made.add_argument(
        "--dataset-path",
        default=".",
        help="folder of CIFAR-10 in one of its formats (default: download it)",
    )
    return made


def logits_loss(labels: keras.KerasTensor, logits: keras.KerasTensor) -> keras.KerasTensor:
    """Return the mean cross-entropy of a batch."""
    losses = keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return keras.ops.mean(losses)


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the fraction of samples whose largest logit is that of their class."""
    return float(np.mean(np.argmax(logits, axis=-1) == labels))


def train_and_test(
    estimator: Estimator,
    data: tuple[tuple, tuple],
    batch_size: int,
    training_steps: int,
    test_steps: int,
) -> None:
    """Train and test on batches in random order, which are repeated without end."""
    train, test = data
    estimator.train(
        lambda: ArrayInput(*train, batch_size=batch_size, shuffle=True, passes=None),
        steps=training_steps,
    )
    print("Check the result...")
    show(
        estimator.evaluate(
            lambda: ArrayInput(*test, batch_size=batch_size, shuffle=True, passes=None),
            steps=test_steps,
        )
    )


def show(results: dict[str, float]) -> None:
    print(f"Validation accuracy: {100 * results['accuracy']:.2f}%")
    print(f"Validation loss: {results['loss']:.4f}")
