"""The native library is found or its absence explained, and its cache is bounded."""

import resource
from pathlib import Path

import numpy as np
import pytest
from convoy.cpu import library
from convoy.cpu.convolution import ConvolutionParameters, recognise
from convoy.cpu.convolution_lowering import describe
from jax import lax

from .reference import normal

X, W = normal((2, 8, 8, 4)), normal((3, 3, 4, 8), 1)


@pytest.mark.parametrize(
    ("implementation", "family"),
    [
        ("winograd:avx2", "Winograd's method"),
        ("direct:avx512", "direct products"),
        ("brgconv:avx512_core", "oneDNN"),
        ("widened jit:avx2", "oneDNN in float32"),
    ],
)
def test_an_implementation_belongs_to_a_family(implementation, family):
    assert library.kernel_family(implementation) == family


@pytest.mark.parametrize("distribution", ["keras-convoy", "onednn-cpu-gomp"])
def test_a_library_that_is_not_installed_is_named(monkeypatch, distribution):
    installed = library.installed_file
    monkeypatch.setattr(
        library, "installed_file", lambda d, name: None if d == distribution else installed(d, name)
    )
    with pytest.raises(library.Unavailable, match=r"not (built|installed)"):
        library.load.__wrapped__()


def test_a_system_without_openmp_loads_the_bundled_library_or_says_what_is_missing(
    native, monkeypatch, tmp_path
):
    monkeypatch.setattr(library, "OPENMP", "libno-openmp-here.so.1")
    with pytest.raises(library.Unavailable, match=r"libno-openmp-here\.so\.1"):
        library.load.__wrapped__()
    bundled = tmp_path / "libno-openmp-here.so.1"
    # Any library will do.
    bundled.write_bytes(library.installed_file("keras-convoy", "libconvoy_cpu.so").read_bytes())
    monkeypatch.setattr(library, "installed_file", lambda distribution, name: bundled)
    library._load_openmp()
    assert str(bundled) in Path("/proc/self/maps").read_text()


def test_a_library_from_before_an_update_is_not_used(native, monkeypatch):
    monkeypatch.setattr(library, "TARGETS", ("convoy_not_yet_there",))
    with pytest.raises(library.Unavailable, match="older than the package: install Convoy again"):
        library.load.__wrapped__()


def visit_shapes(native, count):
    parameters = ConvolutionParameters(
        window_strides=(1, 1),
        padding=((0, 0), (0, 0)),
        lhs_dilation=(1, 1),
        rhs_dilation=(1, 1),
        dimension_numbers=lax.conv_dimension_numbers(X.shape, W.shape, ("NHWC", "HWIO", "NHWC")),
        feature_group_count=1,
        batch_group_count=1,
        precision=None,
        preferred_element_type=None,
    )
    for i in range(count):
        height, width = 1 + i // 100, 1 + i % 100
        array = (1, height, width, 8)
        found = recognise(array, (1, 1, 8, 8), array, parameters)
        assert native.implementation(describe(found, np.dtype(np.float32)), threads=1)


def test_the_cache_of_primitives_is_bounded(native):
    visit_shapes(native, 600)
    assert native.cached <= 512


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_shapes(native):
    visit_shapes(native, 2_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    visit_shapes(native, 10_000)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 64 * 1024, "kilobytes"
