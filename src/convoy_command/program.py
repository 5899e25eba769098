"""Runs a Python program as Python itself would, and has its exit status noticed.

    python -m convoy_command.program script.py its arguments
    python -m convoy_command.program -m module its arguments

Convoy and JAX are not imported: the program decides whether and when.
"""

from __future__ import annotations

import os
import runpy
import sys
from types import TracebackType

from convoy_command import status_noticed

_OWN = (__file__, runpy.run_path.__code__.co_filename)


def main() -> None:
    """Run the program that the arguments name."""
    sys.argv = sys.argv[1:]
    sys.excepthook = _show
    with status_noticed():
        if sys.argv[0] == "-m":
            sys.argv = sys.argv[1:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            if not sys.flags.safe_path:
                sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an exception as if the program had been started without us."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    main()
