"""Runs a Python program as Python itself would, and reports its exit status.

    python -m convoy_command.program script.py its arguments
    python -m convoy_command.program -m module its arguments

Convoy and JAX are not imported, unless the program does so.
"""

import os
import runpy
import sys
from types import TracebackType

from convoy_command import JoinError, exit_status_reported
from convoy_command.parser import failed

_OWN = (__file__, runpy.run_path.__code__.co_filename)


def main() -> None:
    """Run the program in the arguments."""
    sys.argv = sys.argv[1:]
    sys.excepthook = _print_exception
    with exit_status_reported():
        if sys.argv[0] == "-m":
            sys.argv = sys.argv[1:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            run_script()


def run_script() -> None:
    """Run the script that the arguments begin with."""
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _print_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an exception without the frames of this module; of some, the message only."""
    if isinstance(error, JoinError):
        failed("convoy", error)
        return
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    main()
