"""How fast a configuration would be, and what it takes of each device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from convoy.pipeline import Kind, Timeline, generate, simulate
from convoy.pipeline.balance.partition import partition
from convoy.pipeline.schedules import DEFAULT
from convoy.plan.configuration import Configuration
from convoy.plan.machine import Machine
from convoy.plan.profile import Profile

# Micro-batches per stage after which each further one takes as long as the one before.
SETTLED = 3
# An addition moves three arrays where an update moves five.
ADDITION = 0.6
# The part of a device's memory that activations may take before they are computed again.
ACTIVATIONS = 0.5
# Cuts of a model are found for this micro-batch, and taken for all.
USUAL = 16


@dataclass(frozen=True)
class Prediction:
    """What a configuration would give.

    Attributes:
        configuration: the way to divide a weight update.
        cuts: the calls with which the second and later stages begin.
        compute: seconds of a weight update in which micro-batches are computed.
        exchange: seconds in which replicas add up their gradients.
        update: seconds of the optimizer.
        bubble: the part of the first in which devices wait.
        memory: bytes of the device that needs most.
    """

    configuration: Configuration
    cuts: tuple[int, ...]
    compute: float
    exchange: float
    update: float
    bubble: float
    memory: float

    @property
    def seconds(self) -> float:
        return self.compute + self.exchange + self.update

    @property
    def throughput(self) -> float:
        """Samples per second of all replicas together."""
        return self.configuration.global_batch / self.seconds


class Predictor:
    """Predicts one pipeline by simulation; replicas of it are alike, and only exchange gradients.

    Args:
        profile: what the network costs.
        machine: the devices.
        slots: arrays of a weight's size in the optimizer.
    """

    def __init__(self, profile: Profile, machine: Machine, slots: float) -> None:
        self.profile, self.machine, self.slots = profile, machine, slots
        self._cuts: dict[tuple, tuple[int, ...]] = {}

    def memory(self, configuration: Configuration) -> float:
        """Return the bytes of the device that needs most."""
        if configuration.stages == 1:
            return self._memory_in_one_piece(configuration)
        stash = self._stash(configuration)
        borders = self._borders(configuration)
        return max(
            self._stage_memory(configuration, *ends, n)
            for ends, n in zip(borders, stash, strict=True)
        )

    def fastest(self, configuration: Configuration) -> float:
        """Return seconds that a weight update takes at least: those of the slowest stage."""
        if configuration.stages == 1:
            return configuration.accumulation * self._step_in_one_piece(configuration)
        durations, _ = self._durations(configuration)
        pairs = zip(durations[Kind.FORWARD], durations[Kind.BACKWARD], strict=True)
        return configuration.accumulation * max(f + b for f, b in pairs)

    def predict(self, configuration: Configuration) -> Prediction:
        profile, machine = self.profile, self.machine
        stages, count = configuration.stages, configuration.accumulation
        if stages == 1:
            compute = count * self._step_in_one_piece(configuration)
            bubble = 0.0
            weights: Sequence[float] = [profile.weight_bytes]
        else:
            borders = self._borders(configuration)
            weights = [self._weights(*ends) for ends in borders]
            compute, busy = self._pipeline_seconds(configuration)
            bubble = 1 - count * busy / (stages * compute)
        exchange = machine.exchange_seconds(configuration.replicas, stages, max(weights))
        return Prediction(
            configuration,
            self.cuts(configuration),
            compute,
            exchange,
            max(weights) / machine.update,
            bubble,
            self.memory(configuration),
        )

    def cuts(self, configuration: Configuration) -> tuple[int, ...]:
        """Return where the model is cut: by cost, and where that does not fit, by memory too."""
        stages = configuration.stages
        if stages == 1:
            return ()
        by_cost = self._cuts_by_cost(stages)
        stash = self._stash(configuration)
        ends = pairwise((0, *by_cost, len(self.profile.names)))
        needs = [self._stage_memory(configuration, *e, n) for e, n in zip(ends, stash, strict=True)]
        if max(needs) <= self.machine.memory:
            return by_cost
        return self._cuts_that_fit(configuration) or by_cost

    def timeline(self, configuration: Configuration, most: int) -> Timeline:
        """Return what happens in a pipeline, for so many micro-batches at most."""
        count = min(configuration.accumulation, most)
        durations, transfers = self._durations(configuration)
        schedule = generate(configuration.schedule or DEFAULT, configuration.stages, count)
        return simulate(schedule, durations, transfers)

    # Time.

    def _step_in_one_piece(self, configuration: Configuration) -> float:
        profile = self.profile
        seconds = profile.step_seconds(configuration.micro_batch)
        if configuration.recompute:
            # All but the last part runs forwards twice.
            parts = self._parts(configuration)[0]
            seconds *= 1 + profile.forward * (parts - 1) / parts
        if configuration.accumulation > 1:
            seconds += ADDITION * profile.weight_bytes / self.machine.update
        return seconds

    def _pipeline_seconds(self, configuration: Configuration) -> tuple[float, float]:
        """Return the time of all micro-batches, and the work of one, summed over devices.

        Beyond some micro-batches each takes as long as the one before, so few are simulated.
        """
        count, stages = configuration.accumulation, configuration.stages
        durations, transfers = self._durations(configuration)
        known = SETTLED * stages, (SETTLED + 1) * stages
        simulated = [count] if count <= known[1] else known

        def seconds(count: int) -> float:
            schedule = generate(configuration.schedule, stages, count)
            return simulate(schedule, durations, transfers).seconds

        found = [seconds(count) for count in simulated]
        whole = found[0]
        if len(found) > 1:
            whole += (found[1] - found[0]) * (count - known[0]) / (known[1] - known[0])
        busy = sum(durations[Kind.FORWARD]) + sum(durations[Kind.BACKWARD])
        kinds = 3 if configuration.schedule == "zero-bubble" else 2
        return max(whole, kinds * stages * count * self.machine.host_action), busy

    def _durations(
        self, configuration: Configuration
    ) -> tuple[dict[Kind, list[float]], list[float]]:
        """Return the time of each kind of action by stage, and of each transfer."""
        profile, machine = self.profile, self.machine
        step = profile.step_seconds(configuration.micro_batch) * profile.divided
        forward, backward, transfers = [], [], []
        for first, end in self._borders(configuration):
            own = step * (self._sums["shares"][end] - self._sums["shares"][first])
            forward.append(own * profile.forward)
            again = forward[-1] if configuration.recompute else 0.0
            addition = ADDITION * self._weights(first, end) / machine.update
            backward.append(own * (1 - profile.forward) + again + addition)
            transfers.append(profile.live[end - 1] * configuration.micro_batch / machine.link)
        half = [seconds / 2 for seconds in backward]
        durations = {
            Kind.FORWARD: forward,
            Kind.BACKWARD: backward,
            Kind.BACKWARD_INPUT: half,
            Kind.BACKWARD_WEIGHTS: half,
        }
        return durations, transfers

    # Memory.

    def _memory_in_one_piece(self, configuration: Configuration) -> float:
        profile = self.profile
        state = self._state(0, len(profile.names), configuration)
        if configuration.recompute:
            return state + self._parts(configuration)[1]
        return state + self._activations(0, len(profile.names), configuration.micro_batch)

    def _stage_memory(
        self, configuration: Configuration, first: int, end: int, stash: int
    ) -> float:
        """Return the bytes of a stage that holds so many micro-batches at once."""
        samples = configuration.micro_batch
        state = self._state(first, end, configuration)
        own = self._activations(first, end, samples)
        if not configuration.recompute:
            return state + stash * own
        received = self.profile.live[first - 1] * samples if first else 0.0
        return state + stash * received + own

    def _state(self, first: int, end: int, configuration: Configuration) -> float:
        """Return the bytes of weights, gradients, the optimizer and statistics."""
        gradients = 1 if configuration.accumulation == 1 else 2
        statistics = self._sums["statistics"][end] - self._sums["statistics"][first]
        return self._weights(first, end) * (1 + gradients + self.slots) + statistics

    def _activations(self, first: int, end: int, samples: int) -> float:
        per_sample = self._sums["activations"][end] - self._sums["activations"][first]
        return per_sample * samples * self.profile.held

    def _parts(self, configuration: Configuration) -> tuple[int, float]:
        """Cut a model in one piece so that its activations fit; return the parts and the bytes.

        What goes from part to part is kept, and one part's activations are there at a time.
        """
        samples, places = configuration.micro_batch, self.profile.may_cut
        sums, last = self._sums["activations"], len(self.profile.names)
        best: tuple[int, float] | None = None
        for parts in range(2, min(len(places), 32) + 2):
            targets = [sums[-1] * part / parts for part in range(1, parts)]
            cuts = sorted({min(places, key=lambda p: abs(sums[p] - at)) for at in targets})
            held = sum(self.profile.live[cut - 1] for cut in cuts) * samples
            ends = pairwise((0, *cuts, last))
            need = held + max(self._activations(*each, samples) for each in ends)
            if best is None or need < best[1]:
                best = len(cuts) + 1, need
            if best[1] <= ACTIVATIONS * self.machine.memory:
                break
        return best or (1, self._activations(0, last, samples))

    # Cuts.

    @cached_property
    def _sums(self) -> dict[str, list[float]]:
        """Of each kind of cost, the sums over the calls before each call."""
        kinds = ("shares", "weights", "statistics", "activations")
        return {kind: [0.0, *accumulate(getattr(self.profile, kind))] for kind in kinds}

    def _weights(self, first: int, end: int) -> float:
        return self._sums["weights"][end] - self._sums["weights"][first]

    def _borders(self, configuration: Configuration) -> list[tuple[int, int]]:
        return list(pairwise((0, *self.cuts(configuration), len(self.profile.names))))

    def _stash(self, configuration: Configuration) -> tuple[int, ...]:
        """Return the most micro-batches that each stage holds at once."""
        stages = configuration.stages
        count = min(configuration.accumulation, SETTLED * stages)
        return simulate(generate(configuration.schedule, stages, count)).peak_stash

    def _cuts_by_cost(self, stages: int) -> tuple[int, ...]:
        if (stages,) not in self._cuts:
            self._cuts[stages,] = tuple(self._balance(stages, USUAL, None) or ())
        return self._cuts[stages,]

    def _cuts_that_fit(self, configuration: Configuration) -> tuple[int, ...] | None:
        stash = self._stash(configuration)
        if not self._can_fit(configuration, stash):
            return None
        key = configuration.stages, configuration.micro_batch, configuration.recompute, stash
        if key not in self._cuts:
            found = self._balance(configuration.stages, configuration.micro_batch, configuration)
            self._cuts[key] = tuple(found or ())
        return self._cuts[key] or None

    def _can_fit(self, configuration: Configuration, stash: Sequence[int]) -> bool:
        """Say whether there is a cut that fits: give each stage as much as it can hold."""
        places = [*self.profile.may_cut, len(self.profile.names)]
        limit = self.machine.memory
        first = 0
        for held in stash:
            room = [
                end
                for end in places
                if end > first and self._stage_memory(configuration, first, end, held) <= limit
            ]
            if not room:
                return False
            first = room[-1]
            if first == places[-1]:
                return True
        return False

    def _balance(self, stages: int, samples: int, within: Configuration | None) -> list[int] | None:
        profile = self.profile
        step = profile.step_seconds(samples)
        stash = self._stash(within) if within else ()

        def fits(first: int, end: int, after: int) -> bool:
            if within is None:
                return True
            need = self._stage_memory(within, first, end, stash[stages - 1 - after])
            return need <= self.machine.memory

        return partition(
            [share * step for share in profile.shares],
            stages,
            [2 * live * samples / self.machine.link for live in profile.live],
            allowed=profile.may_cut,
            fits=fits,
        )
