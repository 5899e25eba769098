"""Freed memory is kept by the process, not given back to the system with every device call."""

from __future__ import annotations

import ctypes
import os
import platform

VARIABLE = "CONVOY_KEEP_MEMORY"

# `mallopt`'s numbers, from glibc's `malloc.h`.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = -1


def keep() -> bool:
    """Have the C library keep freed memory for the next allocation; say whether it does.

    XLA allocates a program's temporary memory when a device call begins and frees it when the call
    ends. glibc maps such large pieces from the system one by one and gives each back, so that the
    kernel clears every page anew in every call: a third of EfficientNet's training step. Importing
    Convoy calls this. The process then holds on to the most memory it has had in use. It does
    nothing where the variable `CONVOY_KEEP_MEMORY` is `0`, or the C library is not glibc.
    """
    unwanted = os.environ.get(VARIABLE, "").strip().lower() in ("0", "false", "off", "no")
    if unwanted or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # One arena: the others are made of mapped pieces of at most 64 MB, unmapped when they are free.
    settings = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER))
    return all(mallopt(name, value) == 1 for name, value in settings)
