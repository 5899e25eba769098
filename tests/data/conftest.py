"""Settings for all tests of data."""

import pytest

from .pictures import write_folders
from .shards import build


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("imagenet"))


@pytest.fixture(scope="session")
def shards(folders, tmp_path_factory):
    """Record files of the images in folders."""
    output = tmp_path_factory.mktemp("shards")
    assert build(folders, output) == 0
    return output


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""
