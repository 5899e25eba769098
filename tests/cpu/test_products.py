"""The products that convolutions are made of: the same bits with short and with long vectors."""

import os
import subprocess
import sys

import pytest

from .test_winograd import _machine_takes_it  # noqa: F401 - a fixture

pytestmark = pytest.mark.integration

# Heights of every remainder; convolutions of inference, and of a training step.
COMPUTE = """
import hashlib
import jax, jax.numpy as jnp, numpy as np
from convoy.cpu.convolution import ConvolutionParameters
from convoy.cpu.fused_convolution import FusedConvolution
from jax import lax

def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape, "float32")

def convolve(x, w):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)

def note(*arrays):
    for array in arrays:
        digest.update(np.asarray(array).tobytes())

digest, implementations = hashlib.sha256(), set()
for size in range(1, 13):
    for kernel in (1, 3):
        x, w, bias = normal(1, size, size + 4, 32), normal(kernel, kernel, 32, 48), normal(48)
        (equation,) = jax.make_jaxpr(convolve)(x, w).eqns
        shapes = [var.aval for var in (*equation.invars, *equation.outvars)]
        found = ConvolutionParameters.of(equation.params)
        fused = FusedConvolution.find(*shapes, found, adds=True, relu=True)
        implementations.add(fused.implementation)
        note(jax.jit(lambda *a: fused(a[0], fused.pack(a[1]), None, a[2], a[3]))(
            x, w, bias, normal(*shapes[2].shape)))
x, w = normal(2, 12, 12, 32), normal(3, 3, 32, 32)
note(*jax.jit(jax.grad(lambda x, w: jnp.sum(convolve(x, w) ** 2), (0, 1)))(x, w))
print(digest.hexdigest(), *sorted(implementations))
"""


def compute(**variables):
    words = [sys.executable, "-c", COMPUTE]
    ran = subprocess.run(
        words, env=os.environ | variables, capture_output=True, text=True, check=True
    )
    digest, *implementations = ran.stdout.split()
    return digest, implementations


def test_long_vectors_give_the_bits_of_short_ones(native):
    if "AVX-512" not in native.instruction_set:
        pytest.skip(f"there is one kind of vectors with {native.instruction_set}")
    long, made_of_long = compute()
    short, made_of_short = compute(ONEDNN_MAX_CPU_ISA="AVX2")
    assert made_of_long == ["direct:avx512", "winograd:avx512"]
    assert made_of_short == ["direct:avx2", "winograd:avx2"]
    assert long == short
