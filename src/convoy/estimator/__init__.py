"""Estimators: a model function, an input function and a folder of checkpoints.

They train, evaluate and predict on the same engine as Keras models, and resume from the newest
checkpoint in their folder.
"""

from convoy.estimator.checkpoints import WarmStart
from convoy.estimator.estimator import Estimator
from convoy.estimator.hooks import Hook, LoggingHook, Run
from convoy.estimator.input import ArrayInput
from convoy.estimator.jax_function import function
from convoy.estimator.pipeline_estimator import PipelineEstimator
from convoy.estimator.run_config import RunConfig
from convoy.estimator.spec import EstimatorSpec, ModeKeys, PipelineEstimatorSpec
from convoy.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate

__all__ = [
    "ArrayInput",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Hook",
    "LoggingHook",
    "ModeKeys",
    "PipelineEstimator",
    "PipelineEstimatorSpec",
    "Run",
    "RunConfig",
    "TrainSpec",
    "WarmStart",
    "function",
    "train_and_evaluate",
]
