"""Convoy: a plain Keras model, trained and served as a compiled device program."""

import os

# XLA's and gloo's own lines, such as an alarm about a slow compilation, are not for users; errors
# are exceptions too. JAX reads the variable when it is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from convoy import cpu, startup

startup.start()

from convoy import cross_replica, optimizers  # noqa: E402
from convoy.checkpoint import CheckpointError, Checkpoints  # noqa: E402
from convoy.engine.numerics.loss_scale import AutomaticLossScale  # noqa: E402
from convoy.pipeline.pipeline_stage import PipelineStage  # noqa: E402
from convoy.pipeline.split import split  # noqa: E402
from convoy.serving import export  # noqa: E402
from convoy.strategy import Strategy, prepare  # noqa: E402

# Imported last, because it uses the modules above.
from convoy import estimator  # noqa: E402  # isort: skip

__version__ = "0.1.0"

__all__ = [
    "AutomaticLossScale",
    "CheckpointError",
    "Checkpoints",
    "PipelineStage",
    "Strategy",
    "__version__",
    "cpu",
    "cross_replica",
    "estimator",
    "export",
    "optimizers",
    "prepare",
    "split",
]
