"""The network of a run of `convoy train`, ready to be served: it takes images as bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
from convoy import precision
from convoy.data.catalog import CLASS_NAMES, DatasetInfo, Normalisation
from convoy.layers import Decompress, Preprocess
from convoy.train.network import make_network
from convoy.train.options import Options
from convoy.train.run_settings import make_plan
from convoy.train.validation import load_checkpoint


@dataclass(frozen=True)
class ServedNetwork:
    """A network, and what is to be done before it.

    Attributes:
        model: the network.
        preprocessing: from bytes to what it takes; `None` if it takes bytes.
        info: of the data set that it was trained on.
        class_names: empty if they are not known.
    """

    model: keras.Model
    preprocessing: Callable[[Any], Any] | None
    info: DatasetInfo
    class_names: tuple[str, ...]


def served_network(options: Options, weights: Path | None) -> ServedNetwork:
    """Make the network that options describe, with the weights of a checkpoint.

    Args:
        options: those of the training.
        weights: a `.weights.h5` file; without it, weights are random.

    Raises:
        ValueError: if the options contradict each other, or the weights are another network's.
    """
    plan = make_plan(replace(options, synthetic_data=None, random_erasing=0.0))
    options = plan.options
    with precision.find(options.precision).scope():
        model = make_network(options, plan.info, plan.batch.accumulation)
        if weights is not None:
            load_checkpoint(model, weights)
    names = CLASS_NAMES.get(plan.info.name, ())
    if options.eight_bit_transfer:
        return ServedNetwork(model, None, plan.info, names)
    normalisation = None if options.accelerator_side_preprocess else plan.info.normalisation
    return ServedNetwork(model, from_bytes(normalisation), plan.info, names)


def from_bytes(normalisation: Normalisation | None) -> Callable[[Any], Any]:
    """Return what turns images as bytes into numbers, normalised if it is said how."""

    def preprocess(images: Any) -> Any:
        numbers = Decompress(name="from_bytes", dtype="float32")(images)
        if normalisation is None:
            return numbers
        return Preprocess(normalisation, name="normalisation", dtype="float32")(numbers)

    return preprocess
