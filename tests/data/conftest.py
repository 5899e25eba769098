"""Settings for all tests of data."""

import pytest

from .pictures import write_folders


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("imagenet"))


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""
