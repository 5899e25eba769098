"""CIFAR-10 with an IPUPipelineEstimator: the network in two stages.

    python3 cifar10_pipeline_estimator.py

Expected: 81 % validation accuracy after 150 epochs, as stated by Graphcore's example.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from network import LEARNING_RATE, accuracy, layers, load_data, logits_loss, parser, train_and_test

from convoy import ipu  # isort: skip
import keras  # isort: skip
from convoy.ipu.ipu_estimator import ModeKeys
from convoy.ipu.ipu_pipeline_estimator import IPUPipelineEstimator, IPUPipelineEstimatorSpec
from convoy.ipu.ipu_run_config import IPURunConfig, RunConfig
from convoy.ipu.ops.pipelining_ops import OptimizerFunctionOutput

STAGES = 2


def model_fn(mode: str, params: dict[str, Any]) -> IPUPipelineEstimatorSpec:
    """Build the network in two stages: the layers before the cut, and those after it."""
    made, cut = layers(), params["model_shard_position"]

    def run(chosen: list[keras.layers.Layer], x: Any) -> Any:
        for layer in chosen:
            x = layer(x)
        return x

    def first(features: Any, labels: Any) -> tuple:
        return run(made[:cut], features), labels

    def second(x: Any, labels: Any) -> Any:
        logits = run(made[cut:], x)
        loss = logits_loss(labels, logits)
        return loss if mode == ModeKeys.TRAIN else (loss, logits, labels)

    def optimizer_function(loss: Any) -> OptimizerFunctionOutput:
        return OptimizerFunctionOutput(keras.optimizers.SGD(LEARNING_RATE), loss)

    def eval_metrics_fn(loss: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> dict:
        return {"loss": np.mean(loss), "accuracy": accuracy(logits, labels)}

    return IPUPipelineEstimatorSpec(
        mode,
        computational_stages=[first, second],
        gradient_accumulation_count=params["pipeline_depth"],
        optimizer_function=optimizer_function,
        eval_metrics_fn=eval_metrics_fn,
    )


def whole_steps(samples: int, batch: int, depth: int) -> int:
    """Return the number of batches in some samples, rounded down to whole weight updates."""
    return samples // batch // depth * depth


def main() -> None:
    flags = parser("CIFAR-10 with IPUPipelineEstimator")
    flags.add_argument("--ipus", type=int, default=2, help="devices: 2 for each replica (2)")
    flags.add_argument(
        "--pipeline-depth",
        "--gradient-accumulation-count",
        type=int,
        default=8,
        help="batches per weight update, a multiple of 4 (8)",
    )
    flags.add_argument(
        "--model_shard_position",
        "--model-shard-position",
        type=int,
        default=7,
        choices=range(1, 18),
        metavar="1..17",
        help="number of layers, of 18, in the first stage (7)",
    )
    arguments = flags.parse_args()
    if arguments.ipus < STAGES or arguments.ipus % STAGES:
        flags.error(f"--ipus {arguments.ipus}: pass a multiple of {STAGES}")
    batch, depth = arguments.batch_size, arguments.pipeline_depth
    print("Loading the data...")
    train, test = load_data(arguments.dataset_path)
    # Steps count batches; a device call runs whole weight updates.
    test_steps = whole_steps(len(test[0]), batch, depth)
    training_steps = 5 * test_steps * arguments.epochs

    print("Initialize the model")
    options = ipu.config.IPUConfig()
    options.auto_select_ipus = arguments.ipus
    config = RunConfig(
        IPURunConfig(
            iterations_per_loop=test_steps,
            ipu_options=options,
            num_replicas=arguments.ipus // STAGES,
            num_shards=STAGES,
        ),
        log_step_count_steps=training_steps,
    )
    estimator = IPUPipelineEstimator(
        model_fn,
        config=config,
        params={"pipeline_depth": depth, "model_shard_position": arguments.model_shard_position},
    )
    train_and_test(estimator, (train, test), batch, training_steps, test_steps)


if __name__ == "__main__":
    main()
