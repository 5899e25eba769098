"""Training with an evaluation of every checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from convoy.estimator.estimator import Estimator
from convoy.estimator.hooks import Hook, Run


@dataclass(frozen=True)
class TrainSpec:
    """What to train on, and for how long: the arguments of `Estimator.train`."""

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Hook] = ()


@dataclass(frozen=True)
class EvalSpec:
    """What to evaluate on: the arguments of `Estimator.evaluate`."""

    input_fn: Callable[..., Any]
    steps: int | None = None
    name: str | None = None
    hooks: Sequence[Hook] = ()


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> dict[str, float] | None:
    """Train, and evaluate every checkpoint as it is written.

    The data of the training is read on: it does not begin anew after an evaluation.

    Args:
        estimator: its config says how often checkpoints are written.
        train_spec: what to train on.
        eval_spec: what to evaluate on.

    Returns:
        What the last evaluation found; `None` if nothing was left to be trained.
    """
    evaluation = _Evaluation(eval_spec)
    estimator.train(
        train_spec.input_fn,
        hooks=[*train_spec.hooks, evaluation],
        max_steps=train_spec.max_steps,
    )
    return evaluation.results


class _Evaluation(Hook):
    def __init__(self, spec: EvalSpec) -> None:
        self.spec = spec
        self.results: dict[str, float] | None = None

    def after_save(self, run: Run) -> None:
        spec = self.spec
        self.results = run.estimator.evaluate(
            spec.input_fn, steps=spec.steps, hooks=spec.hooks, name=spec.name
        )
