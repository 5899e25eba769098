"""Training with an evaluation of every checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convoy.estimator.estimator import Estimator
from convoy.estimator.hooks import Hook, Run
from convoy.types import Data


@dataclass(frozen=True)
class TrainSpec:
    """Data and duration of a training: the arguments of `Estimator.train`."""

    input_fn: Callable[..., Data]
    max_steps: int | None = None
    hooks: Sequence[Hook] = ()


@dataclass(frozen=True)
class EvalSpec:
    """Data of an evaluation: the arguments of `Estimator.evaluate`."""

    input_fn: Callable[..., Data]
    steps: int | None = None
    name: str | None = None
    hooks: Sequence[Hook] = ()


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> dict[str, float] | None:
    """Train, and evaluate every checkpoint when it is written.

    The training data continues after an evaluation; it does not start again.

    Args:
        estimator: an estimator, whose config sets the interval between checkpoints.
        train_spec: arguments of the training.
        eval_spec: arguments of the evaluations.

    Returns:
        The results of the last evaluation; `None` if there was nothing left to train.
    """
    evaluation = _EvaluationHook(eval_spec)
    estimator.train(
        train_spec.input_fn, hooks=[*train_spec.hooks, evaluation], max_steps=train_spec.max_steps
    )
    return evaluation.results


class _EvaluationHook(Hook):
    def __init__(self, spec: EvalSpec) -> None:
        self.spec = spec
        self.results: dict[str, float] | None = None

    def after_save(self, run: Run) -> None:
        spec = self.spec
        self.results = run.estimator.evaluate(
            spec.input_fn, steps=spec.steps, hooks=spec.hooks, name=spec.name
        )
