"""The selection of `make test-unit`."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = "pytest.mark.integration"


def test_every_package_has_tests_that_are_no_integration_tests():
    for package in (ROOT / "src/convoy").iterdir():
        if not (package / "__init__.py").exists():
            continue
        files = (ROOT / "tests" / package.name).rglob("test_*.py")
        # A mark at the start of a line is for the whole file, one further in for a single test.
        unit = [file for file in files if f"\npytestmark = {MARK}" not in file.read_text()]
        assert unit, f"all files of tests/{package.name} are integration tests"
