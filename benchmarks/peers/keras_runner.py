"""Runner of all peers with a Keras model: Convoy, and Keras on its three backends.

    python -m benchmarks.peers.keras_runner convoy|convoy-cores|jax|tensorflow|torch

All train with `fit`, and predict with `predict`, on arrays in memory and with the same
`steps_per_execution`: Convoy and TensorFlow then loop on the device, Keras's JAX backend on the
host. The torch backend takes only 1.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.peers import protocol
from benchmarks.peers.workloads import Workload

CONVOY = ("convoy", "convoy-cores")


class KerasRunner:
    """Trains with `fit`, predicts with `predict`, or runs inference batch by batch."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.replicas = len(os.sched_getaffinity(0)) if variant == "convoy-cores" else 1
        if variant in CONVOY:
            import convoy  # noqa: F401 - chooses Keras's JAX backend
        else:
            os.environ["KERAS_BACKEND"] = variant

    def scope(self, policy: str) -> AbstractContextManager[None]:
        """Return the scope in which the model is made, under a dtype policy of Keras."""
        if self.variant in CONVOY:
            import convoy

            return convoy.Strategy(devices=self.replicas, precision=policy).scope()
        import keras

        keras.config.set_dtype_policy(policy)
        return contextlib.nullcontext()

    def prepare(self, workload: Workload, precision: str) -> protocol.Ready:
        self.policy = precision if precision == "float32" else f"mixed_{precision}"
        if workload.batch % self.replicas:
            raise ValueError(f"{workload.batch} samples do not divide over {self.replicas} devices")
        self.workload = workload
        self.x, self.y = workload.data()
        self.model = self.make_model()
        parameters = sum(math.prod(weight.shape) for weight in self.model.trainable_weights)
        protocol.check_parameters(workload, parameters)
        if workload.kind == "inference":
            self.predict = make_predict(self.model, self.variant, self.x[: workload.batch])
        self.run(workload.loop_steps)
        return protocol.Ready(parameters, protocol.versions(), self.note())

    def make_model(self) -> Any:
        import keras
        from benchmarks.peers import keras_models

        keras.utils.set_random_seed(0)
        work = self.workload
        with self.scope(self.policy):
            model = keras_models.make(work)
            steps = 1 if self.variant == "torch" else work.loop_steps
            keras_models.compile_model(model, work, steps)
        return model

    def run(self, steps: int) -> None:
        work = self.workload
        if work.kind == "inference":
            for step in range(steps):
                first = step % work.steps * work.batch
                self.predict(self.x[first : first + work.batch])
            return
        samples = min(steps, work.steps) * work.batch
        if work.kind == "prediction":
            for _ in range(max(1, steps // work.steps)):
                self.model.predict(self.x[:samples], batch_size=work.batch, verbose=0)
            return
        self.model.fit(
            self.x[:samples],
            self.y[:samples],
            batch_size=work.batch // self.replicas,
            epochs=max(1, steps // work.steps),
            shuffle=False,
            verbose=0,
        )

    def note(self) -> str:
        """Return a note for the page: the kernels that Convoy uses."""
        if self.variant not in CONVOY:
            return ""
        import convoy

        return str(convoy.cpu.status()).splitlines()[0]


def make_predict(model: Any, variant: str, example: Any) -> Any:
    """Return the fastest way this framework has from a batch on the host to answers there."""
    import numpy as np

    if variant == "tensorflow":
        frozen = freeze(model, example)
        return lambda batch: frozen(batch)[0].numpy()
    return lambda batch: np.asarray(model.predict_on_batch(batch))


def freeze(model: Any, example: Any) -> Any:
    """Make constants of a TensorFlow model's weights, so that its optimizer may fold and fuse."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    call = tf.function(lambda batch: model(batch, training=False))
    concrete = call.get_concrete_function(tf.TensorSpec(example.shape, tf.float32))
    frozen = convert_variables_to_constants_v2(concrete)
    return lambda batch: frozen(tf.constant(batch))


if __name__ == "__main__":
    protocol.serve(KerasRunner, sys.argv[1])
