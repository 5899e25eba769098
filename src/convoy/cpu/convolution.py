"""What JAX says about a convolution, as a value."""

from dataclasses import dataclass, fields
from typing import Any

from jax import lax


@dataclass(frozen=True)
class ConvolutionParameters:
    """The parameters of `lax.conv_general_dilated_p` that its result depends on."""

    window_strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    dimension_numbers: lax.ConvDimensionNumbers
    feature_group_count: int
    batch_group_count: int
    precision: Any
    preferred_element_type: Any

    @classmethod
    def of(cls, parameters: dict[str, Any]) -> "ConvolutionParameters":
        return cls(**{field.name: parameters[field.name] for field in fields(cls)})
