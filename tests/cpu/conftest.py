import jax
import pytest
from convoy import cpu
from convoy.cpu import library, threads
from tests import parts

if jax.config.jax_num_cpu_devices < 2:
    jax.config.update("jax_num_cpu_devices", 2)


@pytest.fixture(autouse=True)
def _kernels_enabled():
    cpu.enable()
    yield
    cpu.enable()


@pytest.fixture(autouse=True)
def _three_threads_for_each_device(monkeypatch):
    """Divide work unevenly, on whatever machine this is."""
    monkeypatch.setattr(threads, "cores", lambda: 3 * jax.local_device_count("cpu"))


@pytest.fixture
def native():
    """The native library; a test that needs it is skipped where it was not built.

    Built but unusable is a failure: it would hide that nothing native was tested.
    """
    parts.require("the native CPU kernels")
    return library.load()
