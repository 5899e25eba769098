"""Whether the process keeps freed memory, told by the pages the kernel has to bring in."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PAGES_OF_ONE_ARRAY = 32 * 1024 * 1024 // os.sysconf("SC_PAGE_SIZE")

COUNT_FAULTS_OF_FOUR_ARRAYS = """
import resource
import convoy
import numpy as np

np.ones(8 * 1024 * 1024, "float32")
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    np.ones(8 * 1024 * 1024, "float32")
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="settings of glibc, and sanitizers have an allocator of their own",
)


def faults(**variables: str) -> int:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", COUNT_FAULTS_OF_FOUR_ARRAYS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@needs_glibc
def test_freed_memory_is_used_again_without_new_pages():
    assert faults() < PAGES_OF_ONE_ARRAY // 8


PAGES_OF_A_LARGE_ARRAY = """
import convoy
import jax.numpy as jnp

x = jnp.ones(64 * 1024 * 1024).block_until_ready()
lines = dict(line.split(":") for line in open("/proc/self/smaps_rollup").readlines()[1:])
print(lines["AnonHugePages"].split()[0])
"""


def _may_ask_for_large_pages() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[never]" not in setting.read_text()


@needs_glibc
@pytest.mark.skipif(not _may_ask_for_large_pages(), reason="the system has no large pages")
def test_arrays_lie_in_large_pages():
    command = [sys.executable, "-c", PAGES_OF_A_LARGE_ARRAY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Of 256 MiB; the system may have found no room for some.
    assert int(done.stdout) > 64 * 1024


@needs_glibc
def test_variable_leaves_the_c_library_as_it_is():
    # NumPy asks for huge pages, of which one fault brings in 512 small ones.
    assert faults(CONVOY_KEEP_MEMORY="0") >= 4 * PAGES_OF_ONE_ARRAY // 512 > 0
