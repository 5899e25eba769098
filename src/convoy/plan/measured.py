"""What a network costs by trying it out, on as many devices at once as there are here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import keras
from convoy.pipeline.balance.layer_costs import (
    ForwardBackward,
    input_shapes,
    measure_layers,
    output_shapes,
)
from convoy.pipeline.stages import calls_of, make_stages
from convoy.plan.profile import Point, Profile, normalised
from convoy.plan.timing import together

# The micro-batch grows from one point to the next, while a step takes less than this.
FIRST, GROWTH, SECONDS = 4, 4, 1.0


def measured(
    model: keras.Model,
    estimated: Profile,
    devices: Sequence[jax.Device],
    *,
    largest: int,
    say: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Return what a model costs on some devices when all of them are at work.

    The whole model is timed for some sizes of the micro-batch, in one program and in two; its
    layers one by one, for their parts of it. So what a device does in one pass counts once.

    Args:
        model: the one that was estimated.
        estimated: what follows from shapes alone.
        devices: all that a run on this machine would use.
        largest: no micro-batch above this one is timed.
        say: is told what goes on.
    """
    calls = calls_of(model)
    (whole,) = make_stages(model, calls, [0] * len(calls))

    def passes(samples: int) -> ForwardBackward:
        inputs = input_shapes(model, samples)
        outputs = output_shapes(whole, inputs)
        return ForwardBackward(whole, inputs, outputs, set(inputs), devices[0].platform)

    samples = min(FIRST, largest)
    say(f"layers one by one, {samples} samples")
    costs = measure_layers(model, calls, samples, devices[0])
    points: list[Point] = []
    while True:
        say(f"a whole step, {samples} samples")
        both = passes(samples)
        arguments = [both.arguments(device) for device in devices]
        points.append((samples, together(both.run, arguments)))
        if points[-1][1] > SECONDS or GROWTH * samples > largest:
            break
        samples *= GROWTH
    say(f"a step in two programs, {samples} samples")
    forward = together(both.forward, arguments)
    pulled = [[both.forward(*each)[1], each[-1]] for each in arguments]
    backward = together(both.backward, pulled)
    analysis = both.run.lower(*arguments[0]).compile().memory_analysis()
    activations = samples * sum(estimated.activations)
    return replace(
        estimated,
        shares=normalised([cost.seconds for cost in costs]),
        points=tuple(points),
        forward=forward / (forward + backward),
        divided=max(1.0, (forward + backward) / points[-1][1]),
        held=analysis.temp_size_in_bytes / activations if analysis else estimated.held,
        source=f"measured on {len(devices)} x {devices[0].platform} at once, micro-batches of "
        + ", ".join(str(size) for size, _ in points),
    )
