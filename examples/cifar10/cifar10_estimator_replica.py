"""CIFAR-10 with an IPUEstimator on several replicas.

    python3 cifar10_estimator_replica.py

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
    """Build the network; replicas take the mean of their gradients."""
    logits = keras.Sequential(layers())(features)
    loss = logits_loss(labels, logits)
    optimizer = ipu.optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(LEARNING_RATE))
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    return IPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss),
        eval_metric_ops={"accuracy": (accuracy, labels, logits)},
    )


def main() -> None:
    flags = parser("CIFAR-10 with IPUEstimator on several replicas")
    flags.add_argument("--ipus", type=int, default=2, help="replicas, each on a device (2)")
    arguments = flags.parse_args()
    batch = arguments.batch_size
    print("Loading the data...")
    train, test = load_data(arguments.dataset_path)
    # A step takes a batch on every replica, so an "epoch" sees the data several times.
    test_steps = len(test[0]) // batch
    training_steps = 5 * test_steps * arguments.epochs

    print("Initialize the model")
    options = ipu.config.IPUConfig()
    options.auto_select_ipus = arguments.ipus
    config = RunConfig(
        IPURunConfig(
            iterations_per_loop=test_steps, ipu_options=options, num_replicas=arguments.ipus
        ),
        log_step_count_steps=training_steps,
    )
    estimator = IPUEstimator(model_fn, config=config)

    print("Training...")
    train_and_test(estimator, (train, test), batch, training_steps, test_steps)


if __name__ == "__main__":
    main()
