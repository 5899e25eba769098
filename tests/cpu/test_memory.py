"""Whether the process keeps freed memory, told by the pages the kernel has to bring in."""

import os
import platform
import subprocess
import sys

import pytest

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


@needs_glibc
def test_variable_leaves_the_c_library_as_it_is():
    # NumPy asks for huge pages, of which one fault brings in 512 small ones.
    assert faults(CONVOY_KEEP_MEMORY="0") >= 4 * PAGES_OF_ONE_ARRAY // 512 > 0
