"""How a command says that it was not understood."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def stop(message: str, program: str) -> NoReturn:
    """End the program with one line and exit status 2."""
    print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
