"""Handwritten digits, with flags for all steps of the tutorial.

    python3 completed_example/main.py
    python3 completed_example/main.py --use-ipu
    python3 completed_example/main.py --use-ipu --pipelining

Expected: about 0.93 training accuracy after 3 epochs.
"""

from __future__ import annotations

import contextlib

from convoy import ipu  # before keras: selects its JAX backend

import keras  # isort: skip
from model import model_fn
from utils import load_data, parse_arguments

DEVICES = 2
STEPS_PER_EXECUTION = 20


def main() -> None:
    arguments = parse_arguments()
    pipelining = arguments.use_ipu and arguments.pipelining
    replicas = DEVICES if arguments.use_ipu and not pipelining else 1
    steps_per_execution = 1
    scope: contextlib.AbstractContextManager = contextlib.nullcontext()
    if arguments.use_ipu:
        steps_per_execution = STEPS_PER_EXECUTION
        if pipelining:
            steps_per_execution = arguments.gradient_accumulation_count
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = DEVICES
        config.configure_ipu_system()
        scope = ipu.ipu_strategy.IPUStrategy().scope()
    batch_size = arguments.batch_size // replicas
    (x_train, y_train), (x_test, y_test) = load_data(arguments.batch_size * steps_per_execution)

    with scope:
        model = keras.Model(*model_fn(pipelining=pipelining))
        if pipelining:
            model.set_pipelining_options(
                gradient_accumulation_steps_per_replica=arguments.gradient_accumulation_count,
                pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Grouped,
            )
        model.compile(
            "sgd",
            "categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
        print("Training")
        model.fit(x_train, y_train, epochs=3, batch_size=batch_size)
        print("Evaluation")
        loss, accuracy = model.evaluate(x_test, y_test, batch_size=batch_size, verbose=0)
    print(f"loss: {loss:.4f} - accuracy: {accuracy:.4f}")
    print("Program ran successfully")


if __name__ == "__main__":
    main()
