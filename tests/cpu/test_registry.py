"""Turning the kernels on and off, and doing without the native library."""

import logging
import os
import subprocess
import sys

import jax
import pytest
from convoy import cpu
from convoy.cpu import library
from jax import lax

from .reference import assert_close, normal

pytestmark = pytest.mark.integration

X, W = normal((2, 8, 8, 4)), normal((3, 3, 4, 8), 1)


@jax.jit
def convolve(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def is_native():
    return "convoy_convolution" in convolve.lower(X, W).as_text()


def run(code, **variables):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_disable_gives_jax_its_rule_back_and_enable_takes_it_again(native):
    with_kernels = convolve(X, W)
    assert is_native()
    assert cpu.status().active
    cpu.disable()
    assert not is_native()
    assert str(cpu.status()).startswith("CPU kernels: off")
    assert_close(convolve(X, W), with_kernels)
    cpu.enable()
    assert is_native()


def test_status_names_what_runs(native):
    status = cpu.status()
    assert status.native
    assert status.onednn.startswith("3.")
    assert status.instruction_set in str(status)


def test_the_variable_keeps_them_off():
    out = run("from convoy import cpu; cpu.enable(); print(cpu.status())", CONVOY_CPU_KERNELS="0")
    assert out.strip() == "CPU kernels: off (CONVOY_CPU_KERNELS=0 is set)"


def test_enabling_does_not_start_jax():
    run(
        "import jax; from convoy import cpu; cpu.enable(); cpu.status();"
        "jax.config.update('jax_num_cpu_devices', 5); assert jax.device_count('cpu') == 5"
    )


def test_without_the_native_library_xla_runs_everything_and_says_so_once(monkeypatch, caplog):
    def missing():
        raise library.Unavailable("the native library was not built")

    cpu.disable()
    expected = convolve(X, W)
    monkeypatch.setattr(library, "load", missing)
    library.find.cache_clear()
    cpu.enable()
    with caplog.at_level(logging.WARNING, "convoy.cpu"):
        convolve(X[:1], W)
        convolve(X, W)
    assert [record.message for record in caplog.records] == [
        "convolutions and poolings run on XLA's own kernels: the native library was not built"
    ]
    assert not is_native()
    assert_close(convolve(X, W), expected)
    status = cpu.status()
    assert status.active
    assert not status.native
    assert "was not built" in str(status)
    monkeypatch.undo()
    library.find.cache_clear()
    cpu.disable()
