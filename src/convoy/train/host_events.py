"""Host events: the weight updates after which log lines and checkpoints are written."""

import math
from dataclasses import dataclass, field
from fractions import Fraction

from convoy.configuration import flag_name
from convoy.train.flags import Options


@dataclass(frozen=True)
class HostEvents:
    """Intervals of a run, in weight updates.

    Attributes:
        updates_per_epoch: number of weight updates per epoch.
        epochs: number of epochs.
        per_log: interval between log lines; 0 is never.
        per_checkpoint: interval between checkpoints; 0 is never.
        first_checkpoint: update after which the first checkpoint is written.
        per_call: number of updates per device call.
        warnings: messages about requested intervals that are not possible.
    """

    updates_per_epoch: int
    epochs: int
    per_log: int
    per_checkpoint: int
    first_checkpoint: int
    per_call: int
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def updates(self) -> int:
        """Number of weight updates of the run."""
        return self.updates_per_epoch * self.epochs

    @property
    def keras_epoch(self) -> int:
        """Updates per epoch of `fit`, which is at least one device call."""
        return max(self.updates_per_epoch, self.per_call)

    @property
    def keras_epochs(self) -> int:
        return self.updates // self.keras_epoch

    def logs_at(self, update: int) -> bool:
        """Return whether a log line is due after some updates."""
        return bool(self.per_log) and update % self.per_log == 0

    def saves_at(self, update: int) -> bool:
        """Return whether a checkpoint is due after some updates."""
        after = update - self.first_checkpoint
        return bool(self.per_checkpoint) and after >= 0 and after % self.per_checkpoint == 0

    def epoch_at(self, update: float) -> float:
        return update / self.updates_per_epoch


def closest_divisor(number: int, wanted: int) -> int:
    """Return the divisor of `number` that is closest to `wanted`; of two, the smaller."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return min({*small, *(number // d for d in small)}, key=lambda d: (abs(d - wanted), d))


def make_host_events(options: Options, updates: int) -> HostEvents:
    """Return the host events that are closest to the requested ones.

    Without `--ckpts-per-epoch`, there is one checkpoint per epoch, at a log event, so that device
    calls do not become shorter. Without log events, there is one checkpoint at the end. Without
    `--first-ckpt-epoch`, the first checkpoint is written after one interval.

    Args:
        options: options of the run.
        updates: number of weight updates per epoch.

    Raises:
        ValueError: if a frequency is negative, the epochs of a log line do not divide the run, or
            epochs and device calls do not fit together.
    """
    epochs, logs, checkpoints = options.num_epochs, options.logs_per_epoch, options.ckpts_per_epoch
    for name in ("logs_per_epoch", "ckpts_per_epoch", "first_ckpt_epoch"):
        if (value := getattr(options, name) or 0) < 0:
            raise ValueError(f"{flag_name(name)} {value} is negative. Pass 0 or more.")
    if 0 < logs < 1 and Fraction(epochs) % (1 / logs):
        raise ValueError(
            f"It is not possible to log {float(1 / logs)} epochs a time for {epochs} epochs"
        )
    warnings: list[str] = []
    total = updates * epochs
    per_log = _interval("Logs", logs, updates, epochs, warnings)
    phase = round(options.first_ckpt_epoch * updates)
    if checkpoints is None:
        per_checkpoint = updates if 0 < per_log <= updates else per_log or total
        per_call = math.gcd(per_log, phase)
    else:
        left = int(epochs - options.first_ckpt_epoch)
        per_checkpoint = _interval("Checkpoints", checkpoints, updates, left, warnings)
        per_call = math.gcd(per_log, per_checkpoint, phase if per_checkpoint else 0)
    if not per_call:
        per_call = total
        warnings.append(
            "Neither logs nor checkpoints are requested before the end: the entire run of "
            f"{total} weight updates is one device call."
        )
    if (per_call > updates and total % per_call) or (per_call <= updates and updates % per_call):
        raise ValueError(
            f"A device call of {per_call} weight updates does not divide an epoch of {updates}. "
            "Choose --logs-per-epoch and --ckpts-per-epoch so that one divides the other."
        )
    first = phase or per_checkpoint
    if per_checkpoint and first > total:
        warnings.append(
            f"The first checkpoint would come after update {first}, but {total} is the last. Pass "
            "a lower --first-ckpt-epoch."
        )
    return HostEvents(updates, epochs, per_log, per_checkpoint, first, per_call, tuple(warnings))


def _interval(
    events: str, frequency: Fraction, updates: int, epochs: int, warnings: list[str]
) -> int:
    if not frequency or epochs < 1:
        return 0
    # Events that come less than once per epoch divide the whole run.
    period = 1 if frequency >= 1 else epochs
    wanted = frequency * period
    found = closest_divisor(updates * period, int(wanted))
    if found != wanted:
        warnings.append(
            f"{events} cannot come {frequency} times per epoch of {updates} weight updates; the "
            f"closest possible is {Fraction(found, period)} times."
        )
    return updates * period // found
