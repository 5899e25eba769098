"""Reports that are recorded once, for the tests of `convoy report`."""

from tests.report.conftest import recorded, staged

__all__ = ["recorded", "staged"]
