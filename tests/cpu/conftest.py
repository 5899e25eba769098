import pytest
from convoy import cpu


@pytest.fixture(autouse=True)
def _kernels_enabled():
    cpu.enable()
    yield
    cpu.enable()
