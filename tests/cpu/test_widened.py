"""16-bit kernels on a CPU without instructions for 16 bits: computed in float32, rounded once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("native"), pytest.mark.integration]

COMPUTE = """
import jax
from convoy import cpu
from convoy.cpu import lowering
from jax import lax
from tests.cpu.reference import HALF_TYPES, compare_in_half, normal, value_and_gradients

assert not cpu.status().half_instructions

def convolve(x, w, strides=(1, 1), groups=1):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, strides, "SAME", dimension_numbers=layout, feature_group_count=groups
    )

for dtype in HALF_TYPES:
    for x, w, options in [
        ((3, 9, 8, 32), (3, 3, 32, 48), {}),
        ((7, 9, 8, 16), (3, 3, 16, 24), {"strides": (2, 2)}),
        ((3, 9, 8, 12), (3, 3, 1, 12), {"groups": 12}),
    ]:
        function = value_and_gradients(lambda x, w: convolve(x, w, **options))
        compare_in_half(function, dtype, normal(x), normal(w, 1))
print(*sorted({kernel.partition(", ")[0] for kernel in lowering.counts()}), sep="\\n")
"""

NORMALISE_AND_POOL = """
import jax
import jax.numpy as jnp
import numpy as np
from convoy import cpu
from convoy.cpu.batch_normalization import Operands, moments, normalize
from jax import lax
from tests.cpu.reference import (
    HALF_TYPES, assert_rounded_once, compare_in_half, normal, value_and_gradients
)

assert not cpu.status().half_instructions
scale, offset = 1 + 0.5 * normal((300,)), normal((300,), 1)

def kernel(x, addend):
    mean, variance = lax.stop_gradient(moments(x))
    return normalize(Operands(x, mean, variance, scale, offset, addend), 1e-3, True)

def reference(x, addend):
    centred = x - x.mean((0, 1))
    variance = (centred**2).mean((0, 1))
    return jnp.maximum(centred * lax.rsqrt(variance + 1e-3) * scale + offset + addend, 0)

for dtype in HALF_TYPES:
    x, addend, dy = (jnp.asarray(normal((5, 7, 300), seed), dtype) for seed in range(3))
    y, pull_back = jax.vjp(kernel, x, addend)
    wide = [array.astype(np.float32) for array in (x, addend, dy)]
    exact, exact_pull_back = jax.vjp(reference, *wide[:2])
    for got, expected in zip((y, *pull_back(dy)), (exact, *exact_pull_back(wide[2])), strict=True):
        assert_rounded_once(got, expected)

    def pool(x):
        window = ((1, 3, 2, 1), (1, 2, 2, 1))
        return lax.reduce_window(x, x.dtype.type(-np.inf), lax.max, *window, "SAME")

    compare_in_half(value_and_gradients(pool), dtype, normal((2, 9, 8, 70)))
"""


def run_with_avx2(program):
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_normalisation_and_pooling_are_rounded_once():
    run_with_avx2(NORMALISE_AND_POOL)


def test_all_forms_are_rounded_once():
    assert run_with_avx2(COMPUTE) == [
        "convolution by Winograd's method",
        "convolution by oneDNN in float32",
    ]
