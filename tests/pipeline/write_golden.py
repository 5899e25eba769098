"""Write down what named schedules are, and draw them.

    python tests/pipeline/write_golden.py NAME ...

`test_schedules.py` compares them with these files from then on.
"""

import sys
from pathlib import Path

from convoy.pipeline import NAMES, generate, render_text, simulate, validate

GOLDEN = Path(__file__).parent / "golden"
SIZES = [(2, 4), (2, 8), (3, 6), (4, 8), (4, 2)]


def path_of(name: str, stages: int, micro_batches: int) -> Path:
    return GOLDEN / f"{name}-{stages}-{micro_batches}.csv"


def write(name: str) -> None:
    for stages, micro_batches in SIZES:
        schedule = validate(generate(name, stages, micro_batches))
        path_of(name, stages, micro_batches).write_text(schedule.to_csv())
        print(f"{name}, {stages} stages, {micro_batches} micro-batches")
        print(render_text(simulate(schedule)), end="\n\n")


if __name__ == "__main__":
    unknown = [word for word in sys.argv[1:] if word not in NAMES]
    if unknown or not sys.argv[1:]:
        raise SystemExit(f"Pass names of schedules; known are {', '.join(NAMES)}.")
    for word in sys.argv[1:]:
        write(word)
