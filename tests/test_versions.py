"""The warning about versions of Keras and JAX that were not tested."""

import os
import re
import subprocess
import sys
import tomllib
import warnings
from importlib import metadata
from pathlib import Path

import pytest
from convoy import versions
from convoy.versions import TESTED, VersionRange

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[1]


def install(monkeypatch, **installed):
    monkeypatch.setattr(versions.metadata, "version", lambda name: installed[name])


@pytest.mark.parametrize("version", ["3.15", "3.15.0rc1", "3.17.2", "3.16"])
def test_a_range_includes_both_of_its_ends(version):
    assert VersionRange("3.15", "3.17").includes(version)


@pytest.mark.parametrize("version", ["3.14.9", "3.18.0", "4.0", "2.16.1"])
def test_other_versions_are_outside_of_it(version):
    assert not VersionRange("3.15", "3.17").includes(version)


def test_tested_versions_give_no_warning(monkeypatch):
    install(monkeypatch, keras=TESTED["keras"].first, jax=TESTED["jax"].last)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_of_untested()


def test_others_give_one_warning_that_names_both(monkeypatch):
    install(monkeypatch, keras="3.99.1", jax="9.0")
    message = (
        f"Convoy is tested with keras {TESTED['keras']} and jax {TESTED['jax']}, "
        "but keras 3.99.1 and jax 9.0 are installed."
    )
    with pytest.warns(UserWarning, match=re.escape(message)) as caught:
        versions.warn_of_untested()
    assert len(caught) == 1


def test_importing_convoy_warns_at_the_line_of_the_import(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import importlib.metadata as metadata\n"
        "own = metadata.version\n"
        "metadata.version = lambda name: '3.99' if name == 'keras' else own(name)\n"
        "import convoy\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stderr.count("Convoy is tested with") == 1
    assert f"{program}:4: UserWarning" in done.stderr


def test_the_installed_versions_are_tested_ones():
    """These are the ones that this very run tests: state them, in the code and in the docs."""
    for name, tested in TESTED.items():
        assert tested.includes(metadata.version(name))


def test_the_oldest_tested_versions_are_the_oldest_that_can_be_installed():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name, tested in TESTED.items():
        (oldest,) = [line.split(">=")[1] for line in wanted if line.startswith(f"{name}>=")]
        assert tested.first == ".".join(oldest.split(".")[:2])


def test_the_page_on_installation_states_the_tested_versions():
    page = (ROOT / "docs/installation.md").read_text()
    for name, tested in TESTED.items():
        assert f"| {name} | {tested} |" in page.replace("Keras", "keras").replace("JAX", "jax")
