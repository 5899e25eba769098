"""Strict settings for every test: four devices, no implicit promotion, no state of earlier runs."""

import gc
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

os.environ["CONVOY_COMPILATION_CACHE"] = "0"

import convoy  # noqa: F401 - chooses the backend of Keras
import jax
import keras
import numpy as np
import pytest
from tests import compilation, parts, strict
from tests.frozen import Frozen

jax.config.update("jax_num_cpu_devices", 4)
# Otherwise JAX's CUDA plugin looks for a GPU when JAX starts, and is not registered without one.
# `make test-targets` needs it to compile for GPUs.
jax.config.update("jax_platforms", "cpu")
strict.enable()
compilation.enable()
# A background job of a shell ignores SIGINT, and so would the programs that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
INTEGRATION_FOLDERS = ("benchmarks", "compatibility", "docs", "equivalence", "examples")
PROGRAMS = "JAX_COMPILATION_CACHE_DIR"
KEEP_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0,
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
}


def pytest_addoption(parser):
    parser.addoption(
        "--update-frozen", action="store_true", help="write the golden files of tests/golden again"
    )


def pytest_configure(config):
    """Have all processes of this run share what they compile, those that tests start too.

    Most of the time goes into compiling, and many tests compile the same program.
    """
    if not hasattr(config, "workerinput"):
        config.programs = tempfile.mkdtemp(prefix="convoy-tests-")
        os.environ |= {PROGRAMS: config.programs}
        os.environ |= {name: str(value) for name, value in KEEP_ALL.items()}
    jax.config.update(PROGRAMS.lower(), os.environ[PROGRAMS])
    for name, value in KEEP_ALL.items():
        jax.config.update(name.lower(), value)


def pytest_collection_modifyitems(items):
    """Mark the tests of whole programs as integration tests; files mark others themselves."""
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in INTEGRATION_FOLDERS:
            item.add_marker("integration")


def pytest_collection_finish():
    """Keep modules and tests, which stay until the end, out of every collection of garbage."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Choose how programs are compiled, before the first fixture compiles one."""
    compilation.set_quick(item.path.relative_to(TESTS).parts[0] in compilation.FOLDERS)


def pytest_terminal_summary(terminalreporter):
    lines = parts.missing(terminalreporter.stats.get("skipped", []))
    if lines:
        terminalreporter.section("missing parts, and how to install them")
        terminalreporter.write("\n".join([*lines, ""]))


def pytest_unconfigure(config):
    if hasattr(config, "programs"):
        shutil.rmtree(config.programs, ignore_errors=True)


@pytest.fixture(autouse=True)
def fresh_start():
    """Every test names its layers from the start, and draws from the same random numbers."""
    # Without a collection of garbage, which would take a fifth of all the time.
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def frozen(request):
    """A comparison with the golden files of `tests/golden`; see `tests/frozen.py`."""
    return Frozen(update=request.config.getoption("--update-frozen"))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    parts.require("mount")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a file system is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
