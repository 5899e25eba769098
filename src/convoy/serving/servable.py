"""A version of a model in memory, compiled for each of its sizes of batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import convoy.layers  # noqa: F401 - so that Keras can read what convoy train made
import jax
import keras
import numpy as np
from convoy import cpu
from convoy.cpu import threads
from convoy.serving import artifact
from convoy.serving.artifact import Artifact
from convoy.serving.errors import ArtifactError
from convoy.serving.forward import Forward, input_shapes
from convoy.serving.signature import Arrays, Signature
from convoy.serving.sizes import timed

logger = logging.getLogger("convoy.serving")

# How far a server may be from the model that was exported, relative to the largest output: other
# kernels on another machine round in another order. Types of 16 bits have fewer digits.
TOLERANCE = 1e-3
TOLERANCE_16_BITS = 3e-2

Programs = dict[int, tuple[Callable[..., Any], list[jax.Array]]]


class Servable:
    """Runs batches of the sizes that it was exported for.

    On a CPU with Convoy's kernels, the Keras model in the artifact is compiled for this machine,
    with packed weights. Elsewhere, or if Keras cannot read it here, the portable programs are.
    Either must return what the exported model returned for the example, or the version is refused.

    Args:
        path: the version's folder.

    Attributes:
        batch_sizes: what it was exported for.
        seconds: how long each of them takes here.
        lanes: how many batches can be computed side by side, each by one thread. There is one if
            Convoy's kernels are not used, or cannot divide the machine.
        lane_seconds: how long sizes of batch take there.

    Raises:
        ArtifactError: if it cannot be read, or returns something else.
    """

    def __init__(self, path: Path) -> None:
        found = artifact.read(path)
        self.signature: Signature = found.signature
        self.class_names = found.class_names
        self.batch_sizes = found.batch_sizes
        self.about = found.about
        self.compiled_from = "keras"
        self.lanes = 1
        self._programs: Programs = {}
        self._lane_programs: Programs = {}
        if not self._compile_keras(found):
            self.compiled_from = "stablehlo"
            self._programs = self._from_stablehlo(found)
        self.seconds = self._try(self._programs, found)
        self.lane_seconds = self._try(self._lane_programs, found)

    def run(self, arrays: Arrays) -> Arrays:
        """Compute outputs. The number of samples must be one of `batch_sizes`."""
        return self._run(self._programs, arrays)

    def run_in_lane(self, arrays: Arrays) -> Arrays:
        """Compute outputs by one thread. The number of samples is one of `lane_seconds`."""
        return self._run(self._lane_programs, arrays)

    def _run(self, programs: Programs, arrays: Arrays) -> Arrays:
        inputs = [arrays[tensor.name] for tensor in self.signature.inputs]
        program, constants = programs[len(inputs[0])]
        outputs = program(constants, *inputs)
        names = [tensor.name for tensor in self.signature.outputs]
        return {name: np.asarray(value) for name, value in zip(names, outputs, strict=True)}

    def _compile_keras(self, found: Artifact) -> bool:
        """Compile the Keras model for this machine; say whether that can be done."""
        file = found.keras_file
        if file is None or not cpu.fuses(jax.default_backend()):
            return False
        lanes = threads.per_device()
        # Lanes share what waits, so that each has the smaller sizes.
        sizes = [size for size in found.batch_sizes if size * lanes <= max(found.batch_sizes)]
        try:
            # Keras's safe mode holds: a file with code in it is refused.
            model = keras.models.load_model(file, compile=False)
            whole = {size: Forward(model, size, cpu.fuse) for size in found.batch_sizes}
            with threads.limit(1):
                narrow = {size: Forward(model, size, cpu.fuse) for size in sizes if lanes > 1}
        except Exception as error:  # whatever a layer makes of it
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            logger.warning("%s: Keras cannot read it here, so it is slower: %s", file, first)
            return False
        kept: dict[str, jax.Array] = {}
        self._programs = self._compile(whole, kept)
        with threads.limit(1):
            self._lane_programs = self._compile(narrow, kept)
        self.lanes = lanes if narrow else 1
        return True

    def _compile(self, forwards: dict[int, Forward], kept: dict[str, jax.Array]) -> Programs:
        programs: Programs = {}
        for size, forward in forwards.items():
            # Weights are packed alike for many sizes; each layout is kept once.
            constants = [
                kept.setdefault(artifact.content_name(np.asarray(value)), value)
                for value in forward.constants
            ]
            compiled = jax.jit(forward.run).lower(constants, *forward.input_shapes).compile()
            programs[size] = compiled, constants
        return programs

    def _from_stablehlo(self, found: Artifact) -> Programs:
        weights = {name: jax.device_put(value) for name, value in found.weights.items()}
        programs: Programs = {}
        for size, program in found.programs.items():
            constants = [weights[name] for name in program.weights]
            call = jax.export.deserialize(bytearray(program.code)).call
            shapes = input_shapes(self.signature.inputs, size)
            programs[size] = jax.jit(call).lower(constants, *shapes).compile(), constants
        return programs

    def _try(self, programs: Programs, found: Artifact) -> dict[int, float]:
        """Compare every program with the example, as often as it takes to fill the batch.

        Returns:
            The seconds of a batch of each size.
        """
        examples = {size: self._example(size, found) for size in programs}
        for example in examples.values():
            for name, value in self._run(programs, example).items():
                _compare(found, name, value)
        return timed(lambda size: self._run(programs, examples[size]), programs)

    def _example(self, size: int, found: Artifact) -> Arrays:
        names = [tensor.name for tensor in self.signature.inputs]
        return {name: np.repeat(found.example[name], size, 0) for name in names}


def _compare(found: Artifact, name: str, value: np.ndarray) -> None:
    expected = found.example[f"={name}"]
    is_narrow = expected.dtype.itemsize <= 2 and expected.dtype.kind not in "iub"
    tolerance = TOLERANCE_16_BITS if is_narrow else TOLERANCE
    wanted = expected.astype(np.float64)
    scale = max(1e-6, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)))
    value = value.astype(np.float64)
    close = np.allclose(value, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if not close:
        far = float(np.nanmax(np.abs(value - wanted)))
        raise ArtifactError(
            f"{found.path}: output {name!r} of the example is {far:.3g} away from what the "
            f"exported model returned (largest value {scale:.3g}). Export the model again."
        )
