"""The words for precision: in what a model computes, and in what its weights are kept."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import keras
from convoy import keras_bridge

# The number of bits in the words, and the type that Keras knows by it.
_TYPES = {"16": "float16", "bf16": "bfloat16", "32": "float32"}
_WELL_FORMED = re.compile(r"(bf)?\d+\.(bf)?\d+")


@dataclass(frozen=True)
class Precision:
    """In what a model computes, and in what its weights are kept and updated.

    Attributes:
        word: such as `"16.32"`: compute precision, a dot, weight-update precision.
        policy: the name of the Keras dtype policy that does it.
    """

    word: str
    policy: str

    @property
    def compute_dtype(self) -> str:
        return keras.DTypePolicy(self.policy).compute_dtype

    @property
    def update_dtype(self) -> str:
        return keras.DTypePolicy(self.policy).variable_dtype

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Make it the policy of layers that this thread makes in the block."""
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            yield
        finally:
            keras.config.set_dtype_policy(before)

    def check(self, model: keras.Model) -> None:
        """Refuse a model none of whose layers computes in this precision.

        Single layers may well have a policy of their own, such as a last one in float32.
        """
        found = keras_bridge.policies(model)
        if found and self.policy not in found:
            raise ValueError(
                f"The strategy has precision={self.word!r}, which is Keras's policy "
                f"{self.policy!r}, but {model.name!r} was made with {_listed(found)}, and a "
                "model keeps the policy that it was made with. Make the model inside of the "
                "strategy's scope (a model that is loaded or cloned keeps its own), or leave "
                "`precision` out."
            )


KNOWN = {
    precision.word: precision
    for precision in (
        Precision("32.32", "float32"),
        Precision("16.32", "mixed_float16"),
        Precision("16.16", "float16"),
        Precision("bf16.32", "mixed_bfloat16"),
        Precision("bf16.16", "bfloat16"),
    )
}


def find(word: str) -> Precision:
    """Return what a precision word stands for.

    Args:
        word: compute precision and weight-update precision with a dot between them: `"32.32"`,
            `"16.32"`, `"16.16"`, `"bf16.32"` or `"bf16.16"`.

    Raises:
        ValueError: if there is no such word; the known ones are listed.
    """
    if word in KNOWN:
        return KNOWN[word]
    known = ", ".join(map(repr, KNOWN))
    if isinstance(word, str) and _WELL_FORMED.fullmatch(word):
        compute, update = word.split(".")
        reason = f"computing in {_type(compute)} and updating in {_type(update)} is not supported"
    else:
        reason = "it is not two precisions with a dot between them"
    raise ValueError(f"precision={word!r} cannot be used: {reason}. Pass one of {known}.")


@functools.cache
def warn_of_half_partials() -> None:
    """Say once that the type of sums is XLA's choice.

    On a CPU it sums products and convolutions of 16-bit numbers in float32, also where JAX is asked
    for sums in 16 bits; for convolutions JAX has no way to ask.
    """
    warnings.warn(
        "half_partials=True has no effect: XLA chooses in what it sums products of 16-bit numbers, "
        "on a CPU float32, which is more accurate. Leave it out.",
        stacklevel=3,
    )


def _type(bits: str) -> str:
    return _TYPES.get(bits, f"{bits!r}")


def _listed(policies: set[str]) -> str:
    return " and ".join(map(repr, sorted(policies)))
