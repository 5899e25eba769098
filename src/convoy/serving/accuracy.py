"""The difference between a model's outputs in 16 bits and in float32, measured at export."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import jax
import keras
import numpy as np
from convoy import cpu
from convoy.serving.errors import describe_error
from convoy.serving.forward_pass import ForwardPass, model_variables, stateless_forward
from convoy.serving.model_precision import FLOAT32
from convoy.serving.signature import Arrays, Signature
from convoy.types import Json


@dataclass(frozen=True)
class Difference:
    """Difference between the outputs of an exported model and those of the same model in float32.

    Attributes:
        samples: number of samples.
        largest: largest absolute difference.
        mean: mean absolute difference.
        same_top_1: fraction of samples with the same top-1 class; `None` if the model does not have
            one output with a score per class.
    """

    samples: int
    largest: float
    mean: float
    same_top_1: float | None

    def __str__(self) -> str:
        text = (
            f"on {self.samples:,} samples, the outputs differ from float32 by at most "
            f"{self.largest:.3g}, on average by {self.mean:.3g}"
        )
        if self.same_top_1 is None:
            return text
        return f"{text}; {self.same_top_1:.2%} have the same top-1 class"


@dataclass(frozen=True)
class ExportedPrecision:
    """The precision of an exported model.

    Attributes:
        policy: names of Keras's dtype policies, separated by commas.
        example_difference: largest difference between the outputs of the artifact's example and
            those of the same model in float32, relative to the largest output.
        difference: difference on samples, if there were any.
    """

    policy: str
    example_difference: float = 0.0
    difference: Difference | None = None

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Read the entry of a manifest.

        Raises:
            ValueError: if a value is not valid.
        """
        policy, example, found = (
            value[name] for name in ("policy", "example_difference", "difference")
        )
        difference = None if found is None else Difference(**found)
        numbers = [example, *(asdict(difference).values() if difference else ())]
        if not isinstance(policy, str) or not all(map(_is_amount, numbers)):
            raise ValueError(f"{value!r} is not a precision.")
        return cls(policy, example, difference)

    def __str__(self) -> str:
        if self.difference is None and self.policy == FLOAT32:
            return f"precision {self.policy}"
        if self.difference is None:
            return (
                f"precision {self.policy}: the difference from float32 was not measured. Pass "
                "samples to measure it"
            )
        return f"precision {self.policy}: {self.difference}"


def _is_amount(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, (int, float)) and type(value) is not bool and 0 <= value < math.inf


def measure_difference(
    model: keras.Model, reference: keras.Model, samples: Arrays, batch_size: int
) -> Difference:
    """Compare the outputs of two models on samples.

    The first model runs as on a server on this machine, with fused kernels if available.

    Raises:
        ValueError: if an output is not finite, but that of the reference is.
    """
    rewrite = cpu.fuse if cpu.fuses(jax.default_backend()) else cpu.fold
    forward = ForwardPass(model, batch_size, rewrite)
    exported, plain = jax.jit(forward.run), jax.jit(stateless_forward(reference))
    weights = [variable.value for variable in model_variables(reference)]
    outputs: list[list[np.ndarray]] = []
    expected: list[list[np.ndarray]] = []
    for inputs, count in _batches(list(samples.values()), batch_size):
        outputs.append(_as_floats(exported(forward.constants, *inputs), count))
        expected.append(_as_floats(plain(weights, *inputs), count))
    pairs = list(zip(_joined(outputs), _joined(expected), strict=True))
    for ours, theirs in pairs:
        check_finite(ours, theirs, model)
    differences = np.concatenate([np.abs(ours - theirs).ravel() for ours, theirs in pairs])
    return Difference(
        len(pairs[0][0]), float(differences.max()), float(differences.mean()), _same_top_1(pairs)
    )


def relative_difference(value: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference from the expected values, relative to the largest value."""
    value, expected = value.astype(np.float64), expected.astype(np.float64)
    scale = np.abs(expected).max(initial=0)
    return float(np.abs(value - expected).max(initial=0) / scale) if scale else 0.0


def check_finite(value: np.ndarray, expected: np.ndarray, model: keras.Model) -> None:
    """Check that a model's outputs are finite where they are finite in float32.

    Raises:
        ValueError: if they are not.
    """
    if np.isfinite(expected).all() and not np.isfinite(value).all():
        raise ValueError(
            f"{model.name!r} overflows in this precision: an output is not finite, but it is in "
            "float32. Pass precision='bfloat16', which has the range of float32."
        )


def _batches(arrays: Sequence[np.ndarray], size: int) -> Iterator[tuple[list[np.ndarray], int]]:
    """Yield batches of equal size, and the number of samples that count in each."""
    samples = len(arrays[0])
    for first in range(0, samples, size):
        chosen = np.minimum(np.arange(first, first + size), samples - 1)
        yield [array[chosen] for array in arrays], min(size, samples - first)


def _joined(batches: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Return each output over all batches."""
    return [np.concatenate(parts) for parts in zip(*batches, strict=True)]


def _as_floats(outputs: Sequence[Any], count: int) -> list[np.ndarray]:
    return [np.asarray(output)[:count].astype(np.float64) for output in outputs]


def _same_top_1(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    (ours, theirs), *more = pairs
    if more or ours.ndim != 2 or ours.shape[1] < 2:
        return None
    return float((ours.argmax(1) == theirs.argmax(1)).mean())


def read_samples(file: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an `.npz` file.

    Raises:
        ValueError: if it is not such a file.
    """
    try:
        # NumPy does not close a damaged file that it has opened itself.
        with file.open("rb") as stream, np.load(stream) as arrays:
            return {name: arrays[name] for name in arrays.files}
    # A text file or a single array has no attribute `files`; a damaged file can raise the other
    # errors.
    except (OSError, ValueError, AttributeError, EOFError, BadZipFile) as error:
        reason = describe_error(error)
        raise ValueError(
            f"--samples {file} is not an .npz file of arrays: {reason.rstrip('.')}. Pass a file "
            "that numpy.savez wrote."
        ) from None


def check_samples(samples: Mapping[str, Any] | Any, signature: Signature) -> Arrays:
    """Return samples by the names of a model's inputs, in the order and types of the signature.

    Args:
        samples: arrays by the names of the inputs; for a model with one input, also the array
            itself, or one array of any name.
        signature: the inputs of the model.

    Raises:
        ValueError: if inputs are missing, or have other shapes or numbers of samples.
    """
    names = [spec.name for spec in signature.inputs]
    if not isinstance(samples, Mapping):
        samples = {names[0]: samples}
    if len(names) == len(samples) == 1:
        samples = dict(zip(names, samples.values(), strict=True))
    if set(samples) != set(names):
        raise ValueError(
            f"The samples have the arrays {sorted(samples)}; expected one for each input of the "
            f"model: {names}."
        )
    arrays: Arrays = {}
    for spec in signature.inputs:
        array = np.asarray(samples[spec.name])
        if array.ndim == 0 or array.shape[1:] != spec.shape or not len(array):
            raise ValueError(
                f"The samples of input {spec.name!r} have the shape {list(array.shape)}; expected "
                f"[samples, {', '.join(map(str, spec.shape))}], with one sample or more."
            )
        if not np.can_cast(array.dtype, spec.numpy_dtype, "same_kind"):
            raise ValueError(
                f"The samples of input {spec.name!r} are of type {array.dtype}; expected "
                f"{spec.dtype}."
            )
        arrays[spec.name] = array.astype(spec.numpy_dtype)
    if len({len(array) for array in arrays.values()}) > 1:
        counts = {name: len(array) for name, array in arrays.items()}
        raise ValueError(
            f"The inputs have different numbers of samples: {counts}. Pass the same number for "
            "each."
        )
    return arrays
