"""Memory that is freed is kept by the process, and lies in large pages."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform

VARIABLE = "CONVOY_KEEP_MEMORY"

# `mallopt`'s numbers, from glibc's `malloc.h`.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_NEVER = -1
# `madvise`'s number, from Linux's `mman.h`.
_HUGE_PAGES = 14
_LARGEST_INTEGER = 2**31 - 1
_DEFAULT_PAD = 128 * 1024


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
    if not all(mallopt(name, value) == 1 for name, value in settings):
        return False
    _reserve_large_pages()
    return True


def _reserve_large_pages() -> None:
    """Extend the heap by addresses, not memory, and have them filled with large pages.

    A page of 4 KiB has an entry of its own in the processor's tables, which hold some thousand.
    With pages of 2 MiB a training step of ResNet-50 is a tenth faster. Where the system does not
    let a process ask for them, this changes nothing.
    """
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    libc.sbrk.argtypes = [ctypes.c_ssize_t]
    libc.malloc.restype = ctypes.c_void_p
    start = libc.sbrk(0)
    libc.mallopt(_TOP_PAD, _LARGEST_INTEGER)
    # What is larger than all that is free makes the heap grow, by that and by the padding.
    libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(_LARGEST_INTEGER))))
    libc.mallopt(_TOP_PAD, _DEFAULT_PAD)
    end = libc.sbrk(0)
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    if end > first:
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _HUGE_PAGES)
