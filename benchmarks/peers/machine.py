"""Description of the machine and the commit of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from benchmarks.peers.environments import ROOT

INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")


def describe() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    entries = dict(map(str.strip, line.partition(":")[::2]) for line in lines if ":" in line)
    flags = entries.get("flags", "").split()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "CPU": entries.get("model name", platform.processor() or platform.machine()),
        "cores": str(len(os.sched_getaffinity(0))),
        "instruction sets": " ".join(name for name in INSTRUCTION_SETS if name in flags),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    }


def commit() -> str:
    """Return the commit that was measured, and whether files differed from it."""
    head = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{head} with uncommitted changes" if changed else head or "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()
