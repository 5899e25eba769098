"""`python3 -m examples_utils benchmark`, Graphcore's name for `convoy bench`."""

import sys
from collections.abc import Sequence

from convoy.cli.bench import main as benchmark


def main(words: Sequence[str]) -> int:
    if words and words[0] == "benchmark":
        return benchmark(words[1:], program="examples_utils benchmark")
    print("usage: python3 -m examples_utils benchmark --spec benchmarks.yml ...", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
