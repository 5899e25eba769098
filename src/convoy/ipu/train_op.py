"""What takes the place of a graph's training operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
from convoy.ipu import optimizers
from convoy.ipu.optimizers import IpuOptimizer, TrainOp, Wishes

if TYPE_CHECKING:
    from convoy.ipu.ipu_session_run_hooks import IPULoggingTensorHook


@dataclass(frozen=True)
class LogOp:
    """Logs tensors by a hook; `IPULoggingTensorHook.log` returns it."""

    hook: IPULoggingTensorHook


@dataclass(frozen=True)
class Parts:
    """What a training operation is made of."""

    wishes: Wishes
    hooks: tuple[IPULoggingTensorHook, ...]


def read(train_op: Any) -> Parts:
    """Take a training operation apart.

    Args:
        train_op: an optimizer of Keras's or of `ipu.optimizers`, what its `minimize` returned, or
            a list of that and what hooks returned.

    Raises:
        ValueError: if there is no optimizer in it, or there are two.
    """
    found = list(_flat(train_op))
    chosen = [part.optimizer if isinstance(part, TrainOp) else part for part in found]
    named = [part for part in chosen if not isinstance(part, LogOp)]
    if len(named) != 1 or not isinstance(named[0], (str, keras.optimizers.Optimizer, IpuOptimizer)):
        raise ValueError(
            f"train_op={train_op!r} is not an optimizer. Pass one of Keras's, or around it one of "
            "ipu.optimizers, or what its minimize(loss) returns."
        )
    hooks = tuple(part.hook for part in chosen if isinstance(part, LogOp))
    return Parts(optimizers.read(named[0]), hooks)


def _flat(train_op: Any) -> Iterator[Any]:
    if isinstance(train_op, Sequence) and not isinstance(train_op, str):
        for part in train_op:
            yield from _flat(part)
    else:
        yield train_op
