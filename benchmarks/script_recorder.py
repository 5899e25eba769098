"""Runs a Keras script and writes the logs of every epoch and evaluation to a file.

    python benchmarks/script_recorder.py LOGS.json script.py its arguments

Stock Keras and Convoy report to callbacks through a `keras.callbacks.CallbackList`. The recorder
adds to two methods of this class, so it also records models that override `fit` or that are
created before or after a strategy's scope begins. The file also contains the exception that ended
the script.
"""

import json
import runpy
import sys
from pathlib import Path

import keras

SEED = 1


def record_logs(records):
    """Append the logs of every epoch and of every evaluation from now on to `records`."""

    def recorded(kind, method):
        def call(self, *arguments, **keywords):
            logs = keywords.get("logs", arguments[-1] if arguments else None)
            records.append([kind, numbers_of(logs)])
            return method(self, *arguments, **keywords)

        return call

    for kind, name in (("epoch", "on_epoch_end"), ("evaluation", "on_test_end")):
        method = getattr(keras.callbacks.CallbackList, name)
        setattr(keras.callbacks.CallbackList, name, recorded(kind, method))


def numbers_of(logs):
    """Return the names and values of logs, in any shape that a `train_step` returns them."""
    paths = keras.tree.flatten_with_path(logs) if isinstance(logs, dict) else []
    return {
        "/".join(map(str, path)): keras.ops.convert_to_numpy(value).tolist()
        for path, value in paths
    }


def main():
    output, sys.argv = Path(sys.argv[1]), sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    outcome = {"logs": [], "error": None}
    record_logs(outcome["logs"])
    keras.utils.set_random_seed(SEED)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException as error:
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            outcome["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise
    finally:
        output.write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
