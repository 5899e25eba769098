"""CIFAR-10 with an IPUEstimator.

    python3 cifar10_ipu_estimator.py

Expected: 81 % validation accuracy after 150 epochs, as stated by Graphcore's example.
"""

from __future__ import annotations

from typing import Any

from network import LEARNING_RATE, layers, load_data, logits_loss, parser, train_and_test

from convoy import ipu  # isort: skip
import keras  # isort: skip
from convoy.ipu.ipu_estimator import IPUEstimator, IPUEstimatorSpec
from convoy.ipu.ipu_run_config import IPURunConfig, RunConfig


def model_fn(features: Any, labels: Any, mode: str) -> IPUEstimatorSpec:
    """Build the network, with its loss, its optimizer and a metric."""
    logits = keras.Sequential(layers())(features)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    return IPUEstimatorSpec(
        mode,
        loss=logits_loss(labels, logits),
        train_op=keras.optimizers.SGD(LEARNING_RATE),
        eval_metric_ops={"accuracy": (accuracy, labels, logits)},
    )


def main() -> None:
    arguments = parser("CIFAR-10 with IPUEstimator").parse_args()
    batch = arguments.batch_size
    print("Loading the data...")
    train, test = load_data(arguments.dataset_path)
    test_steps = len(test[0]) // batch
    training_steps = 5 * test_steps * arguments.epochs

    print("Initialize the model")
    options = ipu.config.IPUConfig()
    options.auto_select_ipus = 1
    config = RunConfig(
        IPURunConfig(iterations_per_loop=test_steps, ipu_options=options),
        log_step_count_steps=training_steps,
    )
    estimator = IPUEstimator(model_fn, config=config)

    print("Training...")
    train_and_test(estimator, (train, test), batch, training_steps, test_steps)


if __name__ == "__main__":
    main()
