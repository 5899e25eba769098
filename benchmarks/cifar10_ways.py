"""Accuracy of the four scripts of `examples/cifar10` compared with stock Keras, epoch by epoch.

    .venv/bin/python -m benchmarks.cifar10_ways DIR --passes 5

Expected: after each epoch, the validation accuracy of a script equals that of stock Keras with the
same global batch size and learning rate, up to the effect of another sample order (some points in
the first epochs, less later). One to two minutes per epoch on two cores.

DIR contains CIFAR-10 in one of the formats that `convoy train` reads. The networks and functions
are those of the scripts; all start with the same seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "cifar10"
sys.path.insert(0, str(EXAMPLE))

import cifar10_estimator_replica
import cifar10_ipu_estimator
import cifar10_pipeline_estimator
import keras
from convoy import ipu
from convoy.estimator import ArrayInput
from convoy.ipu.ipu_estimator import IPUEstimator
from convoy.ipu.ipu_pipeline_estimator import IPUPipelineEstimator
from convoy.ipu.ipu_run_config import IPURunConfig, RunConfig
from network import LEARNING_RATE, layers, load_data

BATCH = 16
REPLICAS = 2
# The gradients of so many batches are summed: as one of their mean with so many times the rate.
DEPTH = 8
SEED = 1
EVALUATION = 50


def keras_model(rate: float) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((32, 32, 3)), *layers(), keras.layers.Activation("softmax")]
    )
    model.compile(
        keras.optimizers.SGD(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def fitted(model: keras.Model, batch: int, train: tuple, test: tuple) -> Iterator[float]:
    whole = len(train[0]) // batch * batch
    while True:
        model.fit(train[0][:whole], train[1][:whole], batch_size=batch, verbose=0)
        yield model.evaluate(*test, batch_size=EVALUATION, verbose=0, return_dict=True)["accuracy"]


def stock(batch: int, rate: float, train: tuple, test: tuple) -> Iterator[float]:
    return fitted(keras_model(rate), batch, train, test)


def strategy(train: tuple, test: tuple) -> Iterator[float]:
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategy().scope():
        yield from fitted(keras_model(LEARNING_RATE), BATCH, train, test)


def estimated(
    kind: type[IPUEstimator], model_fn, devices: int, train: tuple, test: tuple, **config
) -> Iterator[float]:
    """Train an estimator for a pass at a time, by loops of which five are a pass."""
    replicas = config.get("num_replicas", 1)
    loop = len(train[0]) // BATCH // replicas // 5 // DEPTH * DEPTH
    evaluation = len(test[0]) // BATCH // replicas // loop * loop
    options = ipu.config.IPUConfig()
    options.auto_select_ipus = devices
    settings = IPURunConfig(iterations_per_loop=loop, ipu_options=options, **config)
    with tempfile.TemporaryDirectory() as folder:
        params = {"pipeline_depth": DEPTH, "model_shard_position": 7}
        arguments = {"params": params} if kind is IPUPipelineEstimator else {}
        estimator = kind(model_fn, folder, RunConfig(settings), **arguments)
        number = 0
        while True:
            number += 1
            inputs = ArrayInput(*train, batch_size=BATCH, shuffle=True, passes=None, seed=number)
            estimator.train(lambda inputs=inputs: inputs, steps=5 * loop)
            held_out = ArrayInput(*test, batch_size=BATCH, passes=None)
            yield estimator.evaluate(lambda given=held_out: given, steps=evaluation)["accuracy"]


WAYS = {
    "strategy": strategy,
    "estimator": lambda *data: estimated(IPUEstimator, cifar10_ipu_estimator.model_fn, 1, *data),
    "stock, 16 images": lambda *data: stock(BATCH, LEARNING_RATE, *data),
    "replicas": lambda *data: estimated(
        IPUEstimator, cifar10_estimator_replica.model_fn, REPLICAS, *data, num_replicas=REPLICAS
    ),
    "stock, 32 images": lambda *data: stock(REPLICAS * BATCH, LEARNING_RATE, *data),
    "pipeline": lambda *data: estimated(
        IPUPipelineEstimator, cifar10_pipeline_estimator.model_fn, 2, *data, num_shards=2
    ),
    "stock, 128 images": lambda *data: stock(DEPTH * BATCH, DEPTH * LEARNING_RATE, *data),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="the folder of CIFAR-10")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    train, test = load_data(options.data)
    print(
        f"| held-out accuracy after a pass | {' | '.join(map(str, range(1, options.passes + 1)))} |"
    )
    print("|---" * (options.passes + 1) + "|")
    for name in options.ways:
        keras.utils.set_random_seed(SEED)
        print(f"| {name} |", end="", flush=True)
        for _, accuracy in zip(range(options.passes), WAYS[name](train, test), strict=False):
            print(f" {accuracy:.2%} |", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
