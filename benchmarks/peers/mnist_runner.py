"""Runner of a script of the MNIST example, one epoch at a time; see `benchmarks.mnist`.

It answers `prepare <mnist.npz>`, `epoch` and `evaluate` with `done` and JSON, or with `failed`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist"
FIT = "model.fit(x_train, y_train, epochs=3, batch_size=BATCH_SIZE)"
EVALUATE = "model.evaluate(x_test, y_test, batch_size=BATCH_SIZE)"
CONVOY = "import convoy"


def prepared(source: str, is_stock: bool) -> str:
    """Return a script that waits for its turns, and without Convoy if it is to be stock Keras.

    Raises:
        ValueError: if the script has not the lines that it should have.
    """
    for line in (FIT, EVALUATE):
        if source.count(line) != 1:
            raise ValueError(f"the script has not one line {line!r}")
    source = source.replace(FIT, FIT[:-1] + ", callbacks=[turns], verbose=0)")
    source = source.replace(EVALUATE, f"turns.evaluated({EVALUATE[:-1]}, verbose=0))")
    if is_stock:
        lines = source.splitlines()
        source = "\n".join(line for line in lines if not line.startswith(CONVOY))
    return source


def make_turns(answers: Any) -> Any:
    import keras
    import numpy as np

    class Turns(keras.callbacks.Callback):
        """Waits for a line before every epoch, and answers with what came of it."""

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            self.answer(None)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            sys.stdin.readline()
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            values = {name: float(np.asarray(value)) for name, value in (logs or {}).items()}
            seconds = time.perf_counter() - self.began
            # Not counted by a callback of every step: it would wait for each.
            found = {"steps": self.params["steps"], "images": len(script["x_train"])}
            self.answer({"seconds": seconds} | found | values)

        def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
            sys.stdin.readline()

        def answer(self, value: Any) -> None:
            print("done", json.dumps(value), file=answers, flush=True)

        def evaluated(self, scores: Any) -> None:
            self.answer([float(score) for score in scores])

    return Turns()


script: dict[str, Any] = {"__name__": "__main__"}


def main() -> None:
    from benchmarks.peers.protocol import end_with_parent

    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    file = sys.stdin.readline().split(maxsplit=1)[1].strip()
    name = sys.argv[1]
    try:
        is_stock = "tensorflow" in sys.prefix
        if is_stock:
            os.environ["KERAS_BACKEND"] = "tensorflow"
        else:
            import convoy  # noqa: F401 - chooses Keras's JAX backend
        import keras
        import numpy as np

        arrays = np.load(file)
        parts = tuple((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
        keras.datasets.mnist.load_data = lambda: parts
        path = EXAMPLE / name
        source = prepared(path.read_text(), is_stock)
        script["turns"] = make_turns(answers)
        exec(compile(source, str(path), "exec"), script)
    except Exception as error:  # any error of a framework is reported
        traceback.print_exc()
        print("failed", f"{type(error).__name__}: {error}".splitlines()[0], file=answers)


if __name__ == "__main__":
    main()
