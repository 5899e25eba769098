"""One version of a model in memory, compiled for each of its batch sizes."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import convoy.layers  # noqa: F401 - registers the layers of convoy train's models with Keras
import jax
import keras
import numpy as np
from convoy import cpu
from convoy.cpu import threads
from convoy.error_messages import first_line
from convoy.serving import artifact
from convoy.serving.artifact import Artifact
from convoy.serving.batch_sizes import measure
from convoy.serving.errors import ArtifactError, shorten
from convoy.serving.forward_pass import ForwardPass, input_shapes
from convoy.serving.model_precision import FLOAT32
from convoy.serving.signature import Arrays, Signature

logger = logging.getLogger("convoy.serving")

# Tolerance of the check against the exported example, relative to the largest output. Kernels of
# another machine round in another order, and 16-bit types have fewer digits. The accumulated
# rounding error depends on the model. It is measured for the example at export, and programs that
# round in another order may differ in the opposite direction.
TOLERANCE = 1e-3
TOLERANCE_16_BITS = 3e-2
ROUNDING_MARGIN = 4.0

Programs = dict[int, tuple[Callable[..., Any], list[jax.Array]]]
"""The compiled function and its constants, by batch size."""


class Servable:
    """Computes batches of the sizes that the model was exported for.

    On a CPU with Convoy's kernels, the Keras model of the artifact is compiled for this machine,
    with packed weights. Otherwise, or if Keras cannot load it, the portable programs are compiled.
    Either must reproduce the exported example; otherwise the version is rejected.

    Args:
        path: the version's folder.
        timed: whether the programs are timed; otherwise the version cannot serve requests.

    Attributes:
        batch_sizes: the batch sizes that the model was exported for.
        seconds: time of one batch on all cores, by batch size.
        streams: number of batches that can be computed at the same time, each on one core. It is 1
            without Convoy's kernels, or if they cannot partition the cores.
        stream_seconds: time of one batch in a stream, by batch size.
        compiled_from: `"keras"` or `"stablehlo"`.
        fallback: the reason why the portable programs run in place of the Keras model, which would
            be faster here; empty if they do not.
        precision: the precision of the computation; `None` if the artifact does not contain it.

    Raises:
        ArtifactError: if the artifact cannot be read, or the example is not reproduced.
    """

    def __init__(self, path: Path, *, timed: bool = True) -> None:
        found = artifact.read(path)
        self.signature: Signature = found.signature
        self.class_names = found.class_names
        self.batch_sizes = found.batch_sizes
        self.precision = found.precision
        self.compiled_from, self.fallback = "keras", ""
        self.streams = 1
        self._programs: Programs = {}
        self._stream_programs: Programs = {}
        if not self._compile_keras(found):
            self.compiled_from = "stablehlo"
            self._programs = self._compile_stablehlo(found)
        self.seconds = self._check(self._programs, found, timed)
        self.stream_seconds = self._check(self._stream_programs, found, timed)

    def run(self, arrays: Arrays) -> Arrays:
        """Compute a batch on all cores; its size must be one of `batch_sizes`."""
        return self._run(self._programs, arrays)

    def run_in_stream(self, arrays: Arrays) -> Arrays:
        """Compute a batch on one core; its size must be one of `stream_seconds`."""
        return self._run(self._stream_programs, arrays)

    def _run(self, programs: Programs, arrays: Arrays) -> Arrays:
        inputs = [arrays[spec.name] for spec in self.signature.inputs]
        program, constants = programs[len(inputs[0])]
        outputs = program(constants, *inputs)
        names = [spec.name for spec in self.signature.outputs]
        return {name: np.asarray(value) for name, value in zip(names, outputs, strict=True)}

    def _compile_keras(self, found: Artifact) -> bool:
        """Compile the Keras model for this machine, and return whether that was possible."""
        file = found.keras_file
        if file is None or not cpu.fuses(jax.default_backend()):
            return False
        streams = threads.per_device()
        # The streams share the queue, so each needs only the smaller batch sizes.
        sizes = [size for size in found.batch_sizes if size * streams <= max(found.batch_sizes)]
        try:
            # Keras's safe mode is on, so a file that contains code is rejected.
            model = keras.models.load_model(file, compile=False)
            on_machine = {size: ForwardPass(model, size, cpu.fuse) for size in found.batch_sizes}
            with threads.limit(1):
                in_stream = {
                    size: ForwardPass(model, size, cpu.fuse) for size in sizes if streams > 1
                }
        except Exception as error:  # Layers can raise anything.
            self.fallback = f"{file} cannot be loaded by Keras: {first_line(error)}"
            logger.warning("The slower portable programs are used: %s", self.fallback)
            return False
        constants: dict[str, jax.Array] = {}
        self._programs = self._compile(on_machine, constants)
        with threads.limit(1):
            self._stream_programs = self._compile(in_stream, constants)
        self.streams = streams if in_stream else 1
        return True

    def _compile(self, passes: dict[int, ForwardPass], shared: dict[str, jax.Array]) -> Programs:
        programs: Programs = {}
        for size, forward in passes.items():
            # Many batch sizes pack the weights in the same way; each packed array is stored once.
            constants = [
                shared.setdefault(artifact.content_name(np.asarray(value)), value)
                for value in forward.constants
            ]
            compiled = jax.jit(forward.run).lower(constants, *forward.input_shapes).compile()
            programs[size] = compiled, constants
        return programs

    def _compile_stablehlo(self, found: Artifact) -> Programs:
        weights = {name: jax.device_put(value) for name, value in found.weights.items()}
        programs: Programs = {}
        for size, program in found.programs.items():
            constants = [weights[name] for name in program.weights]
            exported = jax.export.deserialize(bytearray(program.code))
            if unknown := unknown_calls(exported.mlir_module()):
                raise ArtifactError(
                    f"{found.path}: the program for {size} samples calls "
                    f"{shorten(', '.join(unknown))}, which convoy export does not write. Export "
                    "the model again."
                )
            shapes = input_shapes(self.signature.inputs, size)
            compiled = jax.jit(exported.call).lower(constants, *shapes).compile()
            programs[size] = compiled, constants
        return programs

    def _check(self, programs: Programs, found: Artifact, timed: bool) -> dict[int, float]:
        """Compare every program's outputs with the example's, and return the time of each."""
        examples = {size: self._example(size, found) for size in programs}
        for example in examples.values():
            for name, value in self._run(programs, example).items():
                _compare(found, name, value)
        return measure(lambda size: self._run(programs, examples[size]), programs if timed else [])

    def _example(self, size: int, found: Artifact) -> Arrays:
        """Return a batch of the example, repeated."""
        names = [spec.name for spec in self.signature.inputs]
        return {name: np.repeat(found.example[name], size, 0) for name in names}


def _compare(found: Artifact, name: str, value: np.ndarray) -> None:
    expected = found.example[f"={name}"]
    tolerance = _tolerance(found, expected.dtype)
    wanted = expected.astype(np.float64)
    scale = max(1e-6, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)))
    value = value.astype(np.float64)
    close = np.allclose(value, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if not close:
        difference = float(np.nanmax(np.abs(value - wanted)))
        raise ArtifactError(
            f"{found.path}: output {name!r} of the example differs by {difference:.3g} from the "
            f"exported model's (largest value {scale:.3g}). Export the model again."
        )


def _tolerance(found: Artifact, dtype: np.dtype) -> float:
    precision = found.precision
    is_16_bits = dtype.itemsize <= 2 and dtype.kind not in "iub"
    if precision is not None:
        is_16_bits |= precision.policy != FLOAT32
    if not is_16_bits:
        return TOLERANCE
    measured = 0.0 if precision is None else precision.example_difference
    return max(TOLERANCE_16_BITS, ROUNDING_MARGIN * measured)


ALLOWED = frozenset(
    {
        "ApproxTopK",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
        "annotate_device_placement",
        "cu_threefry2x32_ffi",
        "hip_threefry2x32_ffi",
        "shape_assertion",
        "stablehlo.dynamic_approx_top_k",
        "stablehlo.dynamic_reduce_window",
        "stablehlo.dynamic_rng_bit_generator",
        "stablehlo.dynamic_top_k",
    }
)
_CALL = re.compile(r'custom_call\s+@(?:"([^"]*)"|([\w.$-]+))\(')


def unknown_calls(module: str) -> list[str]:
    """Return the custom calls of a program that are not allowed.

    Args:
        module: the program as MLIR text.
    """
    # Lines of source locations contain file names, which may contain anything.
    code = "\n".join(line for line in module.splitlines() if not line.startswith("#loc"))
    names = [quoted or plain for quoted, plain in _CALL.findall(code)]
    unknown = sorted(set(names) - ALLOWED)
    # An operation in another syntax counts as unknown.
    if code.count("custom_call") != len(names):
        unknown.append("custom_call")
    return unknown
