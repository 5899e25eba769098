import pytest

from convoy import cpu
from convoy.cpu import library


@pytest.fixture(autouse=True)
def _kernels_enabled():
    cpu.enable()
    yield
    cpu.enable()


@pytest.fixture
def native():
    """The native library; a test that needs it is skipped where it was not built."""
    try:
        return library.load()
    except library.Unavailable as reason:
        pytest.skip(str(reason))
