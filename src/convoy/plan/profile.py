"""Cost profiles of networks: time and memory of their layers, estimated or measured."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import keras
from convoy.pipeline.balance.layer_costs import (
    ForwardBackward,
    estimate_seconds,
    input_shapes,
    layer_sizes,
    measure_layers,
    output_shapes,
)
from convoy.pipeline.balance.partition import allowed_cuts
from convoy.pipeline.stages import calls_of, make_stages
from convoy.plan.machine import time_together

# Micro-batch sizes for which times are estimated; between them the time is linear.
ESTIMATED_SIZES = (1, 64)
# Seconds to start an operation.
START = 5e-6
# Measured micro-batch sizes: the first, and the factor from one to the next as long as a step takes
# less than this many seconds.
FIRST, GROWTH, SECONDS = 4, 4, 1.0


@dataclass(frozen=True)
class Profile:
    """Costs of a network.

    Attributes:
        names: names of its calls, in the order in which they run.
        allowed_cuts: calls with which a stage may begin.
        time_shares: share of each call in the time of a step; their sum is 1.
        weights: bytes of the trainable variables of each call.
        statistics: bytes of the other variables of each call.
        activations: bytes of the outputs of each call per sample.
        live: bytes per sample of all tensors that are read after each call.
        step_times: micro-batch sizes, with the seconds of a step (forward and backward pass in one
            program).
        forward_share: share of the forward pass in a step of two programs.
        split_overhead: time of a step in two programs, as in a stage, relative to one program.
        held_share: share of the activations that is held for the backward pass.
        source: description of the origin of the numbers.
        compiled_memory: micro-batch sizes for which the training program of the model without
            stages was compiled, with its bytes on a device.
    """

    names: tuple[str, ...]
    allowed_cuts: tuple[int, ...]
    time_shares: tuple[float, ...]
    weights: tuple[int, ...]
    statistics: tuple[int, ...]
    activations: tuple[float, ...]
    live: tuple[float, ...]
    step_times: tuple[tuple[int, float], ...]
    forward_share: float = 1 / 3
    split_overhead: float = 1.0
    held_share: float = 1.0
    source: str = ""
    compiled_memory: tuple[tuple[int, float], ...] = ()

    def step_seconds(self, samples: int) -> float:
        """Return the time of a step, by linear interpolation or extrapolation of known ones."""
        known = self.step_times
        if len(known) == 1:
            return known[0][1] * samples / known[0][0]
        index = bisect_left([size for size, _ in known], samples)
        index = min(max(index, 1), len(known) - 1)
        (small, fast), (large, slow) = known[index - 1 : index + 1]
        slope = (slow - fast) / (large - small)
        # A line through measured times may reach zero at small sizes.
        return max(fast + slope * (samples - small), 0.1 * fast * samples / small)


def estimate_profile(model: keras.Model, flops: float, bandwidth: float, source: str) -> Profile:
    """Estimate the costs of a model on a device of some speed.

    Args:
        model: a functional or sequential model.
        flops: floating-point operations per second of a device.
        bandwidth: bytes per second to and from its memory.
        source: description of the origin of these numbers.

    Raises:
        ValueError: if an input of the model has an unknown dimension.
    """
    calls = calls_of(model)
    layers = layer_sizes(model, calls, 1)
    per_sample = [estimate_seconds(layer, flops, bandwidth) for layer in layers]

    def seconds(samples: int) -> list[float]:
        return [START + samples * each for each in per_sample]

    return Profile(
        names=tuple(call.name for call in calls),
        allowed_cuts=tuple(allowed_cuts(calls)),
        time_shares=_normalised(seconds(ESTIMATED_SIZES[-1])),
        weights=tuple(layer.weights for layer in layers),
        statistics=tuple(layer.statistics for layer in layers),
        activations=tuple(float(layer.activations) for layer in layers),
        live=tuple(float(layer.live) for layer in layers),
        step_times=tuple((samples, sum(seconds(samples))) for samples in ESTIMATED_SIZES),
        source=source,
    )


def measure_profile(
    model: keras.Model,
    estimated: Profile,
    devices: Sequence[jax.Device],
    *,
    largest: int,
    log: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Measure the costs of a model on some devices, with all of them busy.

    The whole model is timed for some micro-batch sizes, in one program and in two. Layers are timed
    one by one only for their relative costs, so operations that XLA fuses across layers count once.

    Args:
        model: model of the estimate.
        estimated: estimated profile, with everything that depends only on shapes.
        devices: all devices that a run on this machine would use.
        largest: largest micro-batch size to time.
        log: function that is called with each measurement.
    """
    calls = calls_of(model)
    (whole,) = make_stages(model, calls, [0] * len(calls))
    samples = min(FIRST, largest)
    log(f"layers one by one, {samples} samples")
    layer_seconds = measure_layers(model, layer_sizes(model, calls, samples), devices[0])
    step_times: list[tuple[int, float]] = []
    while True:
        log(f"a whole step, {samples} samples")
        inputs = input_shapes(model, samples)
        outputs = output_shapes(whole, inputs)
        both = ForwardBackward(whole, inputs, outputs, set(inputs), devices[0].platform)
        arguments = [both.arguments(device) for device in devices]
        step_times.append((samples, time_together(both.run, arguments)))
        if step_times[-1][1] > SECONDS or GROWTH * samples > largest:
            break
        samples *= GROWTH
    log(f"a step in two programs, {samples} samples")
    forward = time_together(both.forward, arguments)
    pullbacks = [[both.forward(*each)[1], each[-1]] for each in arguments]
    backward = time_together(both.backward, pullbacks)
    analysis = both.run.lower(*arguments[0]).compile().memory_analysis()
    activations = samples * sum(estimated.activations)
    sizes = ", ".join(str(size) for size, _ in step_times)
    return replace(
        estimated,
        time_shares=_normalised(layer_seconds),
        step_times=tuple(step_times),
        forward_share=forward / (forward + backward),
        split_overhead=max(1.0, (forward + backward) / step_times[-1][1]),
        held_share=analysis.temp_size_in_bytes / activations if analysis else estimated.held_share,
        source=f"measured on {len(devices)} x {devices[0].platform} at once, "
        f"micro-batches of {sizes}",
    )


def _normalised(seconds: Sequence[float]) -> tuple[float, ...]:
    total = sum(seconds)
    return tuple(value / total for value in seconds)
