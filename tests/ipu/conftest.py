import logging

import pytest
from convoy import ipu
from convoy.ipu import notice


@pytest.fixture(autouse=True)
def nothing_configured(caplog):
    """Every test begins without a configuration, and hears what was said before."""
    caplog.set_level(logging.INFO, logger="convoy.ipu")
    notice._logged.clear()
    ipu.config.reset_ipu_configuration()
    yield
    ipu.config.reset_ipu_configuration()


@pytest.fixture
def configure():
    """Make a configuration with so many devices the one in force."""

    def apply(count, change=lambda config: None):
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = count
        change(config)
        config.configure_ipu_system()
        return config

    return apply
