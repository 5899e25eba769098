"""Predictions for parallel configurations: time of a weight update and memory of each device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from convoy.pipeline import Kind, Timeline, generate, simulate
from convoy.pipeline.balance.partition import partition
from convoy.pipeline.schedules import DEFAULT
from convoy.plan.machine import Machine
from convoy.plan.profile import Profile

# Micro-batches per stage after which every additional micro-batch takes the same time.
STEADY = 3
# Time of adding gradients relative to an update, because it moves three arrays instead of five.
ADDITION = 0.6
# Fraction of a device's memory that activations may take before they are recomputed.
MAX_ACTIVATIONS = 0.5
# Micro-batch size for which cuts are chosen, unless they do not fit.
TYPICAL_MICRO_BATCH = 16
# Maximum number of segments of a model on one device that recomputes activations.
MAX_SEGMENTS = 33


@dataclass(frozen=True)
class ParallelConfiguration:
    """A division of a weight update over devices.

    Attributes:
        replicas: number of replicas (data parallelism).
        stages: pipeline stages per replica, each on a device.
        micro_batch: samples per micro-batch.
        gradient_accumulation: micro-batches per weight update and replica.
        schedule: pipeline schedule; empty if there is one stage.
        activation_checkpointing: whether activations are recomputed in the backward pass.
    """

    replicas: int
    stages: int
    micro_batch: int
    gradient_accumulation: int
    schedule: str = ""
    activation_checkpointing: bool = False

    @property
    def devices(self) -> int:
        return self.replicas * self.stages

    @property
    def global_batch(self) -> int:
        return self.replicas * self.micro_batch * self.gradient_accumulation


@dataclass(frozen=True)
class Prediction:
    """Prediction for a configuration.

    Attributes:
        configuration: the configuration.
        cuts: calls with which the second and later stages begin.
        compute: seconds of a weight update in which micro-batches are computed.
        exchange: seconds in which replicas all-reduce gradients.
        update: seconds of the optimizer.
        bubble: fraction of the compute time in which devices wait.
        memory: bytes on the device that needs the most.
    """

    configuration: ParallelConfiguration
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
    """Predicts configurations by simulating one replica and adding the gradient exchange.

    Args:
        profile: costs of the network.
        machine: the devices.
        slots: optimizer slots per weight.
        compiled: bytes of configurations that were compiled for the devices.
    """

    def __init__(
        self,
        profile: Profile,
        machine: Machine,
        slots: float,
        compiled: Mapping[ParallelConfiguration, float] | None = None,
    ) -> None:
        self.profile, self.machine, self.slots = profile, machine, slots
        self._cuts: dict[tuple, tuple[int, ...]] = {}
        self._compiled = compiled or {}

    def predict(self, configuration: ParallelConfiguration) -> Prediction:
        stages, count = configuration.stages, configuration.gradient_accumulation
        bubble = 0.0
        if stages == 1:
            compute = count * self._step_seconds(configuration)
        else:
            compute, busy = self._pipeline_seconds(configuration)
            bubble = 1 - count * busy / (stages * compute)
        weights = max(self._weights(*ends) for ends in self._borders(configuration))
        return Prediction(
            configuration,
            self.cuts(configuration),
            compute,
            self.machine.exchange_seconds(configuration.replicas, stages, weights),
            weights / self.machine.update,
            bubble,
            self.memory(configuration),
        )

    def lower_bound(self, configuration: ParallelConfiguration) -> float:
        """Return a lower bound for the seconds of an update: those of the slowest stage."""
        if configuration.stages == 1:
            return configuration.gradient_accumulation * self._step_seconds(configuration)
        durations, _ = self._durations(configuration)
        pairs = zip(durations[Kind.FORWARD], durations[Kind.BACKWARD], strict=True)
        return configuration.gradient_accumulation * max(f + b for f, b in pairs)

    def timeline(self, configuration: ParallelConfiguration, max_micro_batches: int) -> Timeline:
        """Return the simulated timeline of one replica, for a limited number of micro-batches."""
        count = min(configuration.gradient_accumulation, max_micro_batches)
        schedule = generate(configuration.schedule or DEFAULT, configuration.stages, count)
        return simulate(schedule, *self._durations(configuration))

    # Time.

    def _step_seconds(self, configuration: ParallelConfiguration) -> float:
        """Return the time of one micro-batch without pipeline stages."""
        profile = self.profile
        seconds = profile.step_seconds(configuration.micro_batch)
        if configuration.activation_checkpointing:
            # All but the last segment run the forward pass twice.
            segments, _ = self._segments(configuration)
            seconds *= 1 + profile.forward_share * (segments - 1) / segments
        if configuration.gradient_accumulation > 1:
            seconds += ADDITION * sum(profile.weights) / self.machine.update
        return seconds

    def _pipeline_seconds(self, configuration: ParallelConfiguration) -> tuple[float, float]:
        """Return the time of all micro-batches, and the work of one, summed over devices."""
        count, stages = configuration.gradient_accumulation, configuration.stages
        durations, _ = self._durations(configuration)

        def simulated(count: int) -> float:
            return self.timeline(configuration, count).seconds

        # In the steady state, each micro-batch takes the same time, so two short runs are simulated
        # and extrapolated linearly.
        few, more = STEADY * stages, (STEADY + 1) * stages
        if count <= more:
            seconds = simulated(count)
        else:
            seconds = simulated(few)
            seconds += (simulated(more) - seconds) * (count - few) / (more - few)
        busy = sum(durations[Kind.FORWARD]) + sum(durations[Kind.BACKWARD])
        kinds = 3 if configuration.schedule == "zero-bubble" else 2
        return max(seconds, kinds * stages * count * self.machine.host_action), busy

    def _durations(
        self, configuration: ParallelConfiguration
    ) -> tuple[dict[Kind, list[float]], list[float]]:
        """Return the time of each kind of action by stage, and of each transfer."""
        profile, machine = self.profile, self.machine
        step = profile.step_seconds(configuration.micro_batch) * profile.split_overhead
        forward, backward, transfers = [], [], []
        for first, end in self._borders(configuration):
            own = step * self._sum("time_shares", first, end)
            forward.append(own * profile.forward_share)
            again = forward[-1] if configuration.activation_checkpointing else 0.0
            addition = ADDITION * self._weights(first, end) / machine.update
            backward.append(own * (1 - profile.forward_share) + again + addition)
            transfers.append(profile.live[end - 1] * configuration.micro_batch / machine.link)
        half = [seconds / 2 for seconds in backward]
        return dict(zip(Kind, (forward, backward, half, half), strict=True)), transfers

    # Memory.

    def memory(self, configuration: ParallelConfiguration) -> float:
        """Return the bytes on the device that needs the most memory."""
        if configuration in self._compiled:
            return self._compiled[configuration]
        return self._memory_with(configuration, self.cuts(configuration))

    def _memory_with(self, configuration: ParallelConfiguration, cuts: Sequence[int]) -> float:
        calls = len(self.profile.names)
        if configuration.stages == 1 and configuration.activation_checkpointing:
            return self._state(0, calls, configuration) + self._segments(configuration)[1]
        if configuration.stages == 1 and self.profile.compiled_memory:
            return self._compiled_memory(configuration)
        stages = zip(pairwise((0, *cuts, calls)), self._peak_stash(configuration), strict=True)
        return max(self._stage_memory(configuration, *ends, held) for ends, held in stages)

    def _compiled_memory(self, configuration: ParallelConfiguration) -> float:
        """Return the bytes of the compiled program, with activations for another micro-batch."""
        samples = configuration.micro_batch
        known = self.profile.compiled_memory
        size, memory = min(known, key=lambda each: abs(each[0] - samples))
        return memory + self._activations(0, len(self.profile.names), samples - size)

    def _stage_memory(
        self, configuration: ParallelConfiguration, first: int, end: int, held: int
    ) -> float:
        """Return the bytes of a stage that holds a number of micro-batches at once."""
        samples = configuration.micro_batch
        state = self._state(first, end, configuration)
        own = self._activations(first, end, samples)
        if not configuration.activation_checkpointing:
            return state + held * own
        received = self.profile.live[first - 1] * samples if first else 0.0
        return state + held * received + own

    def _state(self, first: int, end: int, configuration: ParallelConfiguration) -> float:
        """Return the bytes of weights, gradients, optimizer slots and statistics."""
        gradients = 1 if configuration.gradient_accumulation == 1 else 2
        statistics = self._sum("statistics", first, end)
        return self._weights(first, end) * (1 + gradients + self.slots) + statistics

    def _activations(self, first: int, end: int, samples: int) -> float:
        return self._sum("activations", first, end) * samples * self.profile.held_share

    def _segments(self, configuration: ParallelConfiguration) -> tuple[int, float]:
        """Divide a model without stages so that its activations fit; return segments and bytes.

        The tensors between segments are stored, and the activations of one segment at a time.
        """
        samples, allowed = configuration.micro_batch, self.profile.allowed_cuts
        sums, last = self._sums["activations"], len(self.profile.names)
        best: tuple[int, float] | None = None
        for segments in range(2, min(len(allowed) + 1, MAX_SEGMENTS) + 1):
            targets = [sums[-1] * part / segments for part in range(1, segments)]
            cuts = sorted({min(allowed, key=lambda p: abs(sums[p] - at)) for at in targets})
            kept = sum(self.profile.live[cut - 1] for cut in cuts) * samples
            ends = pairwise((0, *cuts, last))
            needed = kept + max(self._activations(*each, samples) for each in ends)
            if best is None or needed < best[1]:
                best = len(cuts) + 1, needed
            if best[1] <= MAX_ACTIVATIONS * self.machine.memory:
                break
        return best or (1, self._activations(0, last, samples))

    @cached_property
    def _sums(self) -> dict[str, list[float]]:
        """For each kind of cost, the sums over the calls before each call."""
        kinds = ("time_shares", "weights", "statistics", "activations")
        return {kind: [0.0, *accumulate(getattr(self.profile, kind))] for kind in kinds}

    def _sum(self, kind: str, first: int, end: int) -> float:
        return self._sums[kind][end] - self._sums[kind][first]

    def _weights(self, first: int, end: int) -> float:
        return self._sum("weights", first, end)

    def _peak_stash(self, configuration: ParallelConfiguration) -> tuple[int, ...]:
        """Return the maximum number of micro-batches that each stage holds at once."""
        count = min(configuration.gradient_accumulation, STEADY * configuration.stages)
        schedule = generate(configuration.schedule or DEFAULT, configuration.stages, count)
        return simulate(schedule).peak_stash

    # Cuts.

    def cuts(self, configuration: ParallelConfiguration) -> tuple[int, ...]:
        """Return the cuts of a model: the fastest, or the fastest that fit into memory."""
        stages = configuration.stages
        if stages == 1:
            return ()
        fastest = self._partition(stages, TYPICAL_MICRO_BATCH, None)
        if self._memory_with(configuration, fastest) <= self.machine.memory:
            return fastest
        return self._partition(stages, configuration.micro_batch, configuration) or fastest

    def _borders(self, configuration: ParallelConfiguration) -> list[tuple[int, int]]:
        return list(pairwise((0, *self.cuts(configuration), len(self.profile.names))))

    def _partition(
        self, stages: int, samples: int, within: ParallelConfiguration | None
    ) -> tuple[int, ...]:
        """Return the fastest cuts; only those that fit into memory if a configuration is given.

        Returns:
            The cuts, or an empty tuple if none fit.
        """
        stash = self._peak_stash(within) if within else ()
        key = (stages, samples, within and within.activation_checkpointing, stash)
        if key in self._cuts:
            return self._cuts[key]
        profile = self.profile
        step = profile.step_seconds(samples)

        def fits(first: int, end: int, after: int) -> bool:
            if within is None:
                return True
            needed = self._stage_memory(within, first, end, stash[stages - 1 - after])
            return needed <= self.machine.memory

        found = partition(
            [share * step for share in profile.time_shares],
            stages,
            [2 * live * samples / self.machine.link for live in profile.live],
            allowed=profile.allowed_cuts,
            fits=fits,
        )
        self._cuts[key] = tuple(found or ())
        return self._cuts[key]
