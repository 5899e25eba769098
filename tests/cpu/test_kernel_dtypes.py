"""The table of types and forms is frozen, and the native library keeps to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.cpu import kernel_dtypes, library
from convoy.cpu.convolution import ConvolutionParameters, Kind, recognise
from convoy.cpu.convolution_lowering import describe
from convoy.cpu.kernel_dtypes import KERNELS, CpuFeature
from jax import lax

ALL_FEATURES = CpuFeature.AVX2 | CpuFeature.BFLOAT16 | CpuFeature.FLOAT16


def row(name, kernel):
    dtypes = (
        f"{dtype} ({feature.name})" if feature else dtype
        for dtype, feature in kernel.dtypes.items()
    )
    first, last = kernel.ranks[0], kernel.ranks[-1]
    superseded = (f"{dtype} ({feature.name})" for dtype, feature in kernel.superseded.items())
    return "\n".join(
        [
            name,
            f"    types     {', '.join(dtypes)}",
            f"    but not   {', '.join(superseded) or 'none'}",
            f"    ranks     {first} to {last}" if last < 10 else f"    ranks     {first} and more",
            f"    options   {', '.join(sorted(kernel.options)) or 'none'}",
            f"    channels  {kernel.min_channels} and more",
        ]
    )


def test_the_table_is_that_of_the_golden_file(frozen):
    frozen("cpu_kernels", "\n".join(row(name, kernel) for name, kernel in KERNELS.items()))


def test_every_type_of_a_convolution_has_a_number_of_onednn():
    forms = [kernel for name, kernel in KERNELS.items() if name.startswith("convolution, ")]
    assert {dtype for kernel in forms for dtype in kernel.dtypes} <= set(kernel_dtypes.ONEDNN_TYPES)


def array(dtype, rank=4):
    return jax.ShapeDtypeStruct((2,) * rank, dtype)


@pytest.mark.parametrize(
    ("features", "dtype", "takes"),
    [
        (CpuFeature.NONE, "float16", False),
        (CpuFeature.AVX2, "float16", True),
        (CpuFeature.AVX2, "bfloat16", True),
        (CpuFeature.AVX2 | CpuFeature.BFLOAT16, "bfloat16", False),
        (CpuFeature.AVX2 | CpuFeature.BFLOAT16, "float16", True),
        (ALL_FEATURES, "float32", True),
        (ALL_FEATURES, "int32", False),
    ],
)
def test_a_type_needs_features_and_may_be_superseded(features, dtype, takes):
    assert KERNELS[kernel_dtypes.WINOGRAD].takes(features, array(dtype)) == takes


@pytest.mark.parametrize("dtype", kernel_dtypes.ALL_FLOATS)
def test_every_kernel_of_training_takes_all_floats_on_every_cpu(dtype):
    others = {kernel_dtypes.FOLDED, kernel_dtypes.XLA}
    others |= {kernel_dtypes.WINOGRAD, kernel_dtypes.DIRECT}
    # In float32 XLA's own sums are as fast.
    others |= {kernel_dtypes.CHANNEL_SUMS} if dtype == "float32" else set()
    # Without instructions for the type, XLA's products are as fast.
    others |= {kernel_dtypes.MATRIX_PRODUCT} if dtype != "float32" else set()
    for name in KERNELS.keys() - others:
        assert KERNELS[name].takes(CpuFeature.NONE, array(dtype))


@pytest.mark.parametrize(("dtype", "feature"), kernel_dtypes.INSTRUCTIONS.items())
def test_a_matrix_product_needs_instructions_for_the_type(dtype, feature):
    product = KERNELS[kernel_dtypes.MATRIX_PRODUCT]
    assert product.takes(feature, array(dtype))
    assert not product.takes(ALL_FEATURES & ~feature, array(dtype))


def test_all_arrays_have_one_type():
    forward = KERNELS[kernel_dtypes.FORWARD]
    assert not forward.takes(ALL_FEATURES, array("float32"), array("bfloat16"))


@pytest.mark.parametrize(("rank", "takes"), [(2, False), (3, True), (5, True), (6, False)])
def test_a_convolution_has_one_to_three_spatial_axes(rank, takes):
    assert KERNELS[kernel_dtypes.FORWARD].takes(ALL_FEATURES, array("float32", rank)) == takes


def parameters_of(convolve, *shapes):
    avals = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    jaxpr = jax.make_jaxpr(convolve)(*avals)
    (equation,) = [e for e in jaxpr.eqns if e.primitive is lax.conv_general_dilated_p]
    return ConvolutionParameters.of(equation.params), equation.outvars[0].aval.shape


@pytest.mark.parametrize(
    "argument",
    [
        {"window_strides": (2, 1)},
        {"lhs_dilation": (1, 2)},
        {"rhs_dilation": (2, 2)},
        {"feature_group_count": 2},
        {"batch_group_count": 2},
    ],
    ids=lambda argument: next(iter(argument)),
)
def test_options_are_the_parameters_that_differ_from_a_plain_convolution(argument):
    def convolve(x, w):
        arguments = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0))} | argument
        return lax.conv_general_dilated(
            x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **arguments
        )

    inputs = 4 if "feature_group_count" in argument else 8
    parameters, _ = parameters_of(convolve, (4, 8, 8, 8), (3, 3, inputs, 16))
    assert parameters.options == set(argument)
    refused = [name for name in KERNELS if not parameters.options <= KERNELS[name].options]
    assert kernel_dtypes.WINOGRAD in refused


# A convolution that both of Convoy's own implementations take, and changes that some do not.
PLAIN = {"kernel": (3, 3), "window_strides": (1, 1), "rhs_dilation": (1, 1), "groups": 1}
CASES = [
    PLAIN,
    PLAIN | {"window_strides": (2, 2)},
    PLAIN | {"rhs_dilation": (2, 2)},
    PLAIN | {"groups": 2},
]
IDS = ["plain", "strides", "dilation", "groups"]


def implementation(native, case, dtype, kind):
    def convolve(x, w):
        return lax.conv_general_dilated(
            x,
            w,
            case["window_strides"],
            "SAME",
            rhs_dilation=case["rhs_dilation"],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=case["groups"],
        )

    lhs, rhs = (8, 16, 16, 64), (*case["kernel"], 64 // case["groups"], 64)
    parameters, out = parameters_of(convolve, lhs, rhs)
    numbers = describe(recognise(lhs, rhs, out, parameters), jnp.dtype(dtype))
    if kind == Kind.INFERENCE:
        numbers = np.append(numbers, [0, 0])
        numbers[0] = kind
    return parameters, native.implementation(numbers.astype(np.int64), 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", [Kind.FORWARD, Kind.INFERENCE])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_native_library_keeps_to_the_rows_of_its_implementations(native, case, kind, dtype):
    parameters, found = implementation(native, case, dtype, kind)
    names = [kernel_dtypes.WINOGRAD, *[kernel_dtypes.DIRECT] * (kind == Kind.INFERENCE)]
    expected = [
        name
        for name in names
        if KERNELS[name].takes(native.features, array(dtype))
        and parameters.options <= KERNELS[name].options
    ]
    family = (found or "").partition(":")[0]
    assert family == expected[0] if expected else family not in names


def test_a_kernel_is_found_for_arrays_that_it_takes(native):
    assert library.find_for(kernel_dtypes.MAX_POOL, array("float32")) is native
    assert library.find_for(kernel_dtypes.MAX_POOL, array("int32")) is None
