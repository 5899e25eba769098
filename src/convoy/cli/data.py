"""`convoy data`: the verbs that look after data sets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from convoy.data import build_imagenet, verify
from convoy.train import data_bench
from convoy_command.parser import Parser

VERBS = {"verify": verify, "build-imagenet": build_imagenet, "bench": data_bench}


def make_parser() -> Parser:
    parser = Parser(prog="convoy data", description="Look after data sets.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, module in VERBS.items():
        verbs.add_parser(name, help=(module.main.__doc__ or "").splitlines()[0])
        verbs.choices[name] = module.make_parser()
    return parser


def main(words: Sequence[str]) -> int:
    """Look after data sets."""
    if words and words[0] in VERBS:
        return VERBS[words[0]].main(words[1:])
    if not words:
        make_parser().print_help(sys.stderr)
        return 2
    make_parser().parse_args(words)
    return 0
