"""How fast a run was, call by call."""

from __future__ import annotations

from dataclasses import dataclass, field

from cosmoflow.run_plan import Plan

HEAD = "Iteration, Batches/Second, Samples/Second"


@dataclass
class Throughput:
    """The device calls of a run. The first one compiles and warms up, and is not counted.

    Attributes:
        plan: of the run.
        warm_up: seconds of the first call.
        calls: steps and seconds of each of the others.
    """

    plan: Plan
    warm_up: float | None = None
    calls: list[tuple[int, float]] = field(default_factory=list)

    def add(self, steps: int, seconds: float) -> None:
        if self.warm_up is None:
            self.warm_up = seconds
            self._first = steps
        else:
            self.calls.append((steps, seconds))

    @property
    def _counted(self) -> list[tuple[int, float]]:
        """The calls; a run of one call has no other than the first."""
        if self.calls or self.warm_up is None:
            return self.calls
        return [(self._first, self.warm_up)]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self._counted)

    @property
    def samples_per_second(self) -> float:
        steps = sum(steps for steps, _ in self._counted)
        return steps * self.plan.samples_per_step / self.seconds if self.seconds else 0.0

    @property
    def table(self) -> list[str]:
        rows = [
            f"{number}, {steps / seconds:.3f}, {steps / seconds * self.plan.samples_per_step:.3f}"
            for number, (steps, seconds) in enumerate(self._counted, start=1)
        ]
        return [HEAD, *rows]

    @property
    def final_line(self) -> str:
        return (
            f"Took {self.seconds / 60:.3f} minutes, i.e. {self.samples_per_second:.2f} samples per "
            f"second for batch-size {self.plan.batch.micro_batch} and no. IPUs = "
            f"{self.plan.batch.replicas}"
        )
