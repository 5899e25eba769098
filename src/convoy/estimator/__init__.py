"""Estimators: a function that makes a network, a function that reads data, and a folder.

They train, evaluate and predict on the same engine as Keras models do, and go on from the
checkpoints in their folder.
"""

from convoy.estimator.config import RunConfig
from convoy.estimator.estimator import Estimator
from convoy.estimator.function import function
from convoy.estimator.hooks import Hook, LoggingHook, Run
from convoy.estimator.input import ArrayInput
from convoy.estimator.pipeline_estimator import PipelineEstimator
from convoy.estimator.saved import WarmStart
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
