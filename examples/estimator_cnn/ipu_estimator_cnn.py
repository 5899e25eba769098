"""A small CNN on CIFAR-10, trained and tested by an IPUEstimator.

    python3 ipu_estimator_cnn.py

README.md describes the flags.
"""

from __future__ import annotations

import argparse
import logging
import time
from typing import Any

import convoy.data  # before keras: selects its JAX backend

import keras  # isort: skip
import numpy as np
from convoy import ipu
from convoy.estimator import ArrayInput
from convoy.ipu.ipu_estimator import IPUEstimator, IPUEstimatorSpec, ModeKeys
from convoy.ipu.ipu_run_config import IPURunConfig, RunConfig
from convoy.ipu.ipu_session_run_hooks import IPULoggingTensorHook
from convoy_command.parser import Parser

SEED = 42
CLASSES = 10
GENERATED = 50_000

Split = tuple[np.ndarray, np.ndarray]


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> IPUEstimatorSpec:
    """Build the network, with its loss, its optimizer and a metric."""
    if mode == ModeKeys.PREDICT:
        raise NotImplementedError("The example trains and tests; it does not predict.")
    network = keras.Sequential(
        [
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Dropout(0.25),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(CLASSES),
        ]
    )
    logits = network(features)
    losses = keras.ops.sparse_categorical_crossentropy(labels[:, 0], logits, from_logits=True)
    loss = keras.ops.mean(losses)
    train_op: list[Any] = [keras.optimizers.SGD(params["learning_rate"])]
    if mode == ModeKeys.TRAIN:
        train_op.append(logging_hook(params["log_interval"]).log({"loss": loss}))
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    return IPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        eval_metric_ops={"accuracy": (accuracy, labels, logits)},
    )


def logging_hook(seconds: float) -> IPULoggingTensorHook:
    """Return a hook that logs the mean loss since its last line."""

    def shown(values: dict[str, np.ndarray]) -> str:
        return ", ".join(f" {name} = {np.mean(value):.3f}" for name, value in values.items())

    mode = IPULoggingTensorHook.LoggingMode.ALL
    return IPULoggingTensorHook(every_n_secs=seconds, formatter=shown, logging_mode=mode)


def load(arguments: argparse.Namespace) -> tuple[Split, Split]:
    """Return training and test data: pixels from 0 to 1, and class numbers in a column."""
    if arguments.generated_data:
        rng = np.random.default_rng(SEED)
        images = rng.random((GENERATED, 32, 32, 3), dtype="float32")
        labels = rng.integers(0, CLASSES, (GENERATED, 1)).astype("int32")
        return (images, labels), (images, labels)
    try:
        data = convoy.data.load("cifar10", arguments.dataset_path)
    except ValueError as error:
        raise SystemExit(
            f"ipu_estimator_cnn.py: error: {error} --generated-data needs no data."
        ) from None
    return tuple(
        (images.astype("float32") / 255, labels.astype("int32")[:, None])
        for images, labels in (data.train, data.test)
    )


def training_steps(samples: int, arguments: argparse.Namespace) -> int:
    """Return the steps of all epochs, rounded up to whole device calls."""
    steps = int(arguments.epochs * samples / arguments.batch_size)
    return steps + arguments.batches_per_step - steps % arguments.batches_per_step


def test_steps(samples: int, arguments: argparse.Namespace) -> int:
    """Return the steps of one epoch, rounded down to whole device calls."""
    steps = samples // arguments.batch_size
    return steps - steps % arguments.batches_per_step


def train(estimator: IPUEstimator, data: Split, arguments: argparse.Namespace) -> None:
    print("Training...")
    start = time.time()
    estimator.train(
        lambda: ArrayInput(
            *data, batch_size=arguments.batch_size, shuffle=True, passes=None, seed=SEED
        ),
        steps=training_steps(len(data[0]), arguments),
    )
    print(f"Took {time.time() - start:.2f} seconds to compile and run")


def test(estimator: IPUEstimator, data: Split, arguments: argparse.Namespace) -> None:
    steps = test_steps(len(data[0]), arguments)
    if not steps:
        raise SystemExit(
            f"{len(data[0])} examples do not fill {arguments.batches_per_step} batches of "
            f"{arguments.batch_size}. Pass a smaller --batches-per-step."
        )
    print("Testing...")
    print(f"Evaluating on {steps * arguments.batch_size} examples")
    start = time.time()
    results = estimator.evaluate(
        lambda: ArrayInput(*data, batch_size=arguments.batch_size), steps=steps
    )
    print(f"Test loss: {results['loss']:g}")
    print(f"Test accuracy: {100 * results['accuracy']:.2f}%")
    print(f"Took {time.time() - start:.2f} seconds to compile and run")


def parse_arguments() -> argparse.Namespace:
    parser = Parser(description="A small CNN on CIFAR-10 with IPUEstimator.")
    parser.add_argument("--batch-size", type=int, default=32, help="samples in a batch (32)")
    parser.add_argument(
        "--batches-per-step", type=int, default=100, help="steps per device call (100)"
    )
    parser.add_argument("--epochs", type=float, default=100, help="number of epochs (100)")
    parser.add_argument(
        "--learning-rate", type=float, default=0.01, help="learning rate of SGD (0.01)"
    )
    parser.add_argument(
        "--test-only", action="store_true", help="test the newest checkpoint of --model-dir"
    )
    parser.add_argument("--train-only", action="store_true", help="do not test")
    parser.add_argument(
        "--log-interval", type=float, default=3, help="seconds between log lines (3)"
    )
    parser.add_argument(
        "--summary-interval", type=int, default=1, help="steps between summaries (1)"
    )
    parser.add_argument(
        "--model-dir", help="folder of checkpoints and summaries (default: a temporary one)"
    )
    parser.add_argument("--generated-data", action="store_true", help="random data")
    parser.add_argument(
        "--dataset-path",
        default=".",
        help="folder of CIFAR-10 in one of its formats (default: download it)",
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    logging.basicConfig(format="%(levelname)s:%(name)s:%(message)s")
    logging.getLogger("convoy").setLevel(logging.INFO)
    ipu.utils.reset_ipu_seed(SEED)
    train_data, test_data = load(arguments)
    config = RunConfig(
        IPURunConfig(iterations_per_loop=arguments.batches_per_step),
        log_step_count_steps=None,
        save_summary_steps=arguments.summary_interval,
        model_dir=arguments.model_dir,
        tf_random_seed=SEED,
    )
    params = {"learning_rate": arguments.learning_rate, "log_interval": arguments.log_interval}
    estimator = IPUEstimator(model_fn, config=config, params=params)
    if not arguments.test_only:
        train(estimator, train_data, arguments)
    if not arguments.train_only:
        test(estimator, test_data, arguments)


if __name__ == "__main__":
    main()
