"""`convoy.split`: splits a model into pipeline stages, by layer names or by measured cost."""

import difflib
import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import jax
import keras
from convoy import compile_target, distributed, keras_bridge
from convoy import devices as device_choice
from convoy.arguments import whole_number
from convoy.engine.data.input import DEFAULT_BATCH
from convoy.engine.data.placement import tree_bytes
from convoy.engine.prepared_model import DeferredSplit, PreparedModel
from convoy.error_messages import first_names
from convoy.keras_bridge import GraphCall, graph_input_specs
from convoy.pipeline.balance.layer_costs import (
    LayerSizes,
    estimate_seconds,
    layer_sizes,
    measure_layers,
    transfer_seconds,
)
from convoy.pipeline.balance.partition import StageMemory, allowed_cuts, partition
from convoy.pipeline.stages import calls_of, set_stage_assignment
from convoy.types import Data

logger = logging.getLogger("convoy.pipeline")

# Minimum similarity of suggested names; lower than Python's default, so that c9 is suggested for
# c1.
SIMILARITY = 0.5
# Maximum number of layers that an error lists.
# A stage with less than this fraction of an even share of the time causes a warning.
MIN_SHARE = 0.1
# Optimizer slots per weight if the optimizer is not built yet: those of Adam.
SLOTS = 2


def split(
    model: keras.Model,
    stages: Sequence[str] | int | Literal["auto"],
    *,
    batch_size: int = DEFAULT_BATCH,
    sample: Data = None,
) -> keras.Model:
    """Split a model into pipeline stages, each on its own device.

    Args:
        model: model to split in place; a subclassed model must be built.
        stages: names of the layers with which the second and later stages begin, `"nested/layer"`
            for a layer of a nested model. Alternatively the number of stages, or `"auto"` for one
            stage per device of the strategy: every layer is then timed, and the model is split so
            that its slowest stage is as fast as possible. Under `convoy compile`, the times are
            estimated.
        batch_size: samples per micro-batch, for timing the layers.
        sample: example inputs in the form that `fit` takes, for a model with inputs of unknown size
            such as `keras.Input((None,))`. Layers are timed with their shapes. Without a sample,
            such a model is split when it first receives data, by the shapes of the first batch.

    Returns:
        The same model.

    Raises:
        ValueError: if the model was not prepared by Convoy, a layer does not exist, layers are not
            in the order in which they run, or the model cannot be split into this number of stages.

    Example:
    ```python
    strategy = convoy.Strategy(devices=2, gradient_accumulation=16)
    with strategy.scope():
        model = keras.applications.ResNet50(weights=None)
        model.compile("sgd", "sparse_categorical_crossentropy")
    convoy.split(model, stages="auto", batch_size=4)
    ```
    """
    devices = PreparedModel.of(model).devices
    if not devices:
        raise ValueError(
            f"{model.name!r} is a stock Keras model, which would train without stages. Make it "
            "in a strategy's scope, or pass it to convoy.prepare() first."
        )
    if stages == "auto":
        stages = device_choice.per_replica() or len(devices)
    if isinstance(stages, int) and not isinstance(stages, bool):
        whole_number("stages", stages, "a number of stages")
        whole_number("batch_size", batch_size, "a number of samples")
        request = DeferredSplit(stages, batch_size)
        check_cuts(model, calls_of(model), stages)
        if sample is None and has_unknown_sizes(model):
            PreparedModel.of(model).deferred_split = request
            return model
        assignment = _assign_by_cost(model, request, sample)
    elif isinstance(stages, Sequence) and not isinstance(stages, str):
        assignment = split_by_name(model, stages)
    else:
        raise ValueError(
            f"stages={stages!r} does not define stages. Pass a list of names of layers, a number "
            "of stages, or 'auto'."
        )
    set_stage_assignment(model, assignment)
    return model


def split_deferred(model: keras.Model, x: Data) -> None:
    """Split a model whose split was deferred until the sizes of its inputs are known.

    Args:
        model: any model; one without a deferred split does not change.
        x: inputs of the model.
    """
    request = PreparedModel.of(model).deferred_split
    if request is not None:
        set_stage_assignment(model, _assign_by_cost(model, request, x))


def has_unknown_sizes(model: keras.Model) -> bool:
    """Return whether an input of a model has an unknown size other than the batch."""
    return any(None in tensor.shape[1:] for tensor in graph_input_specs(model))


def _assign_by_cost(model: keras.Model, request: DeferredSplit, sample: Data) -> list[int]:
    devices = PreparedModel.of(model).devices
    own = [device for device in devices if device.process_index == distributed.index()]
    # Measured times differ between processes, but all must use the same split.
    return distributed.from_first(split_by_cost(model, *request, own, sample))


def split_by_name(model: keras.Model, names: Sequence[str]) -> list[int]:
    """Return the stage of every call, given the layers with which later stages begin.

    Args:
        model: model whose layers are known.
        names: names of the layers in the order of the stages; `nested/layer` for a layer of a
            nested model.

    Raises:
        ValueError: if a layer does not exist, is named twice or out of order, or would leave a
            stage empty.
    """
    calls = calls_of(model)
    positions: dict[str, int] = {}
    for position, call in enumerate(calls):
        path = call.name.split("/")
        for end in range(1, len(path) + 1):
            positions.setdefault("/".join(path[:end]), position)
    cuts = []
    for name in names:
        if name not in positions:
            raise ValueError(
                f"{name!r} is not a layer of {model.name!r}, so no stage can begin with it. "
                f"{_suggestion(name, list(positions))}"
            )
        cuts.append(positions[name])
    for before, after in pairwise([0, *cuts]):
        if after <= before:
            name = calls[after].name
            problem = "is the first layer" if after == 0 else "does not come after the one before"
            raise ValueError(
                f"A stage cannot begin with {name!r}: it {problem}. Name layers in the order in "
                "which they run, without the first."
            )
    return _assignment(cuts, len(calls))


def _suggestion(name: str, names: Sequence[str]) -> str:
    """Return names similar to one that does not exist, or else some of the existing ones."""
    near = difflib.get_close_matches(name, names, 3, SIMILARITY)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Its layers are {first_names(names)}."


def split_by_cost(
    model: keras.Model,
    stages: int,
    batch_size: int,
    devices: Sequence[jax.Device],
    sample: Data = None,
) -> list[int]:
    """Return the stage of every call so that the slowest stage is as fast as possible.

    Every layer is timed, and so is a transfer between devices; on the devices of a compile target,
    the times are estimated. A layer that runs several times stays in one stage, and every stage
    fits into the memory of a device.

    Args:
        model: a functional or sequential model.
        stages: number of stages.
        batch_size: samples per micro-batch.
        devices: devices of the strategy.
        sample: inputs whose shapes give the sizes that the model leaves open.

    Raises:
        ValueError: if there is no such split.
    """
    calls = calls_of(model)
    cuts_allowed = check_cuts(model, calls, stages)
    layers = layer_sizes(model, calls, batch_size, sample)
    seconds, rate = _times(model, layers, devices)
    limit = device_choice.memory(tuple(devices))
    memory = StageMemory(layers, _optimizer_slots(model))
    cuts = partition(
        seconds,
        stages,
        [2 * rate * layer.live for layer in layers],
        allowed=cuts_allowed,
        fits=lambda first, end, after: memory.bytes(first, end, after) <= limit,
    )
    if cuts is None:
        raise ValueError(
            f"{model.name!r} cannot be split into {stages} stages that fit into the "
            f"{limit / 1e9:.3g} GB of a device: in every split, one stage takes more. Request more "
            "stages, or pass a smaller batch_size."
        )
    if distributed.index() == 0:
        _log_shares(model, calls, seconds, cuts)
    if compile_target.target() is not None:
        logger.warning(
            "The stages of %r begin with %s, by estimated times. On the devices, layers are timed: "
            "pass these names to split there in the same way.",
            model.name,
            " ".join(calls[cut].name for cut in cuts),
        )
    return _assignment(cuts, len(calls))


def _times(
    model: keras.Model, layers: Sequence[LayerSizes], devices: Sequence[jax.Device]
) -> tuple[list[float], float]:
    """Return the time of each layer, and that of a transfer per byte."""
    if target := compile_target.target():
        # Only the vendors' figures are known, and transfers overlap with computation.
        estimates = [estimate_seconds(layer, target.flops, target.bandwidth) for layer in layers]
        return estimates, 0.0
    return measure_layers(model, layers, devices[0]), transfer_seconds(devices)


def check_cuts(model: keras.Model, calls: Sequence[GraphCall], stages: int) -> list[int]:
    """Return the calls at which a model can be split, if there are enough for the stages."""
    cuts = allowed_cuts(calls)
    if len(cuts) < stages - 1:
        raise ValueError(_too_few_cuts(model, calls, cuts, stages))
    return cuts


def _assignment(cuts: Sequence[int], calls: int) -> list[int]:
    return [sum(position >= cut for cut in cuts) for position in range(calls)]


def _log_shares(
    model: keras.Model, calls: Sequence[GraphCall], seconds: Sequence[float], cuts: Sequence[int]
) -> None:
    """Log each stage's share of the time, and warn about a stage with almost none."""
    total = sum(seconds)
    if not total:
        return
    borders = [0, *cuts, len(calls)]
    shares = [sum(seconds[first:end]) / total for first, end in pairwise(borders)]
    logger.info(
        "%s is split into %d stages with %s of the time",
        model.name,
        len(shares),
        ", ".join(f"{share:.1%}" for share in shares),
    )
    least = min(range(len(shares)), key=lambda stage: shares[stage])
    if shares[least] < MIN_SHARE / len(shares):
        logger.warning(
            "The split of %r is very uneven: stage %d, which begins with layer %r, has %.1f %% of "
            "the time, so its device mostly waits. Request fewer stages, or split by names of "
            "layers.",
            model.name,
            least,
            calls[borders[least]].name,
            100 * shares[least],
        )


def _too_few_cuts(
    model: keras.Model, calls: Sequence[GraphCall], cuts: Sequence[int], stages: int
) -> str:
    holders: dict[int, list[str]] = {}
    for call in calls:
        for variable in call.variables:
            holders.setdefault(id(variable), []).append(call.name)
    first, *others = next((names for names in holders.values() if len(names) > 1), [""])
    because = ""
    if others and others[-1] == first:
        because = f" Layer {first!r} runs several times, and all of its calls must be in one stage."
    elif others:
        because = f" Layers {first!r} and {others[-1]!r} share a weight, so one stage has both."
    return (
        f"{model.name!r} has {len(calls)} layers and {len(cuts)} possible cuts, too few for "
        f"{stages} stages.{because} Request at most {len(cuts) + 1}."
    )


def _optimizer_slots(model: keras.Model) -> float:
    optimizer = getattr(model, "optimizer", None)
    weights = tree_bytes(keras_bridge.values(list(model.trainable_variables)))
    if optimizer is None or not optimizer.built or not weights:
        return SLOTS
    return tree_bytes(keras_bridge.values(list(optimizer.variables))) / weights
