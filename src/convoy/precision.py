"""Mixed precision: the type that a model computes in, and the type of its weights."""

import contextlib
import functools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import keras
from convoy import keras_bridge

# The dtype of each part of a pair such as "16.32".
_DTYPES = {"16": "float16", "bf16": "bfloat16", "32": "float32"}
_PAIR = re.compile(r"(bf)?\d+\.(bf)?\d+")


@dataclass(frozen=True)
class Precision:
    """Compute type and weight type of a model.

    Attributes:
        pair: compute precision and weight-update precision in bits, such as `"16.32"`
            (Graphcore's notation).
        policy: name of the Keras dtype policy.
    """

    pair: str
    policy: str

    @property
    def compute_dtype(self) -> str:
        return keras.DTypePolicy(self.policy).compute_dtype

    @property
    def update_dtype(self) -> str:
        return keras.DTypePolicy(self.policy).variable_dtype

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Set Keras's dtype policy for the layers that this thread creates in the block."""
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            yield
        finally:
            keras.config.set_dtype_policy(before)

    def check(self, model: keras.Model) -> None:
        """Check that at least one layer of a model has this precision.

        Other layers may have other policies, such as a last layer in float32.

        Raises:
            ValueError: if no layer has it.
        """
        found = keras_bridge.policies(model)
        if found and self.policy not in found:
            raise ValueError(
                f"The strategy has precision={self.pair!r}, which is Keras's policy "
                f"{self.policy!r}, but {model.name!r} was made with "
                f"{' and '.join(map(repr, sorted(found)))}. Create the model in the strategy's "
                "scope, or leave `precision` out. A model that is loaded or cloned keeps its "
                "policy."
            )


_PRECISIONS = (
    Precision("32.32", "float32"),
    Precision("16.32", "mixed_float16"),
    Precision("16.16", "float16"),
    Precision("bf16.32", "mixed_bfloat16"),
    Precision("bf16.16", "bfloat16"),
)
PRECISIONS = {precision.pair: precision for precision in _PRECISIONS} | {
    precision.policy: precision for precision in _PRECISIONS
}
"""All precisions by both of their names."""
AUTO = "auto"
CHOICES = (*PRECISIONS, AUTO)
"""The names of all precisions, and `"auto"` for the fastest one on the device."""


def find(name: str) -> Precision:
    """Return the precision of a name.

    Args:
        name: name of a Keras dtype policy, such as `"mixed_float16"`, or compute and weight-update
            precision with a dot between them, such as `"16.32"`; one of `PRECISIONS`.

    Raises:
        ValueError: if there is no such precision; the error lists all names.
    """
    if name in PRECISIONS:
        return PRECISIONS[name]
    if isinstance(name, str) and _PAIR.fullmatch(name):
        compute, update = (_DTYPES.get(bits, repr(bits)) for bits in name.split("."))
        reason = f"computing in {compute} and updating in {update} is not supported"
    else:
        reason = "it is neither two precisions with a dot between them nor a policy of Keras"
    names = ", ".join(map(repr, PRECISIONS))
    raise ValueError(f"precision={name!r} cannot be used: {reason}. Pass one of {names}.")


@functools.cache
def warn_of_half_partials() -> None:
    """Warn once that `half_partials=True` has no effect.

    On a CPU, XLA accumulates matrix products and convolutions of 16-bit numbers in float32, even if
    JAX requests 16-bit accumulation. For convolutions, JAX cannot request it at all.
    """
    warnings.warn(
        "half_partials=True has no effect: XLA chooses the type in which it accumulates 16-bit "
        "products (on a CPU float32, which is more accurate). Leave it out.",
        stacklevel=3,
    )
