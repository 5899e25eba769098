"""16-bit convolutions on a CPU without instructions for them: computed in float32, rounded once."""

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


def test_all_forms_are_rounded_once():
    ran = subprocess.run(
        [sys.executable, "-c", COMPUTE],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "convolution by Winograd's method",
        "convolution by oneDNN in float32",
    ]
