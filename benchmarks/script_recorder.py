"""Runs a Keras script and writes the logs of every epoch and evaluation to a file.

    python benchmarks/script_recorder.py [options] LOGS.json script.py its arguments

Stock Keras and Convoy report to callbacks through a `keras.callbacks.CallbackList`. The recorder
adds to two methods of this class, so it also records models that override `fit` or that are
created before or after a strategy's scope begins. The file also contains the warnings of the run
and the exception that ended the script.
"""

import argparse
import contextlib
import importlib
import json
import runpy
import sys
import warnings
from pathlib import Path

import keras
import numpy as np

SEED = 1


def record_logs(records, paths):
    """Append the logs of every epoch and of every evaluation from now on to `records`.

    Args:
        records: list of a name and numbers for each.
        paths: list that gets `"engine"` or `"stock"` for each.
    """

    def recorded(kind, method):
        def call(self, *arguments, **keywords):
            logs = keywords.get("logs", arguments[-1] if arguments else None)
            records.append([kind, numbers_of(logs)])
            is_ours = type(self).__module__.startswith("convoy")
            paths.append("engine" if is_ours else "stock")
            return method(self, *arguments, **keywords)

        return call

    for kind, name in (("epoch", "on_epoch_end"), ("evaluation", "on_test_end")):
        method = getattr(keras.callbacks.CallbackList, name)
        setattr(keras.callbacks.CallbackList, name, recorded(kind, method))


def record_warnings(messages):
    """Append every warning that is shown from now on to `messages`."""
    show = warnings.showwarning

    def recorded(message, *arguments, **keywords):
        messages.append(" ".join(str(message).split()))
        show(message, *arguments, **keywords)

    warnings.showwarning = recorded


def perturb_weights():
    """Change each weight to a neighbouring float32 number when the training of its model begins."""
    begin = keras.callbacks.CallbackList.on_train_begin
    generator, perturbed = np.random.default_rng(SEED), set()

    def perturbed_begin(self, *arguments, **keywords):
        for weight in self.model.trainable_weights if self.model else ():
            if weight.dtype == "float32" and id(weight) not in perturbed:
                perturbed.add(id(weight))
                value = keras.ops.convert_to_numpy(weight)
                towards = generator.choice([-np.inf, np.inf], value.shape).astype(np.float32)
                weight.assign(np.nextafter(value, towards))
        return begin(self, *arguments, **keywords)

    keras.callbacks.CallbackList.on_train_begin = perturbed_begin


def compute_in_float64():
    """Let Keras compute in float64 throughout.

    Keras computes in float32 wherever float64 meets float32, as in batch normalisation; not here.
    """
    import jax
    from keras.src.backend.common.dtypes import BIT64_TO_BIT32_DTYPE

    keras.config.set_floatx("float64")
    jax.config.update("jax_enable_x64", True)
    BIT64_TO_BIT32_DTYPE.pop("float64")


def set_seed(script):
    """Set the seed of all random generators that a script may use.

    `keras.utils.set_random_seed` leaves out PyTorch's unless it is the backend, and its
    `DataLoader` then shuffles each run differently. It also leaves out NumPy's generators that a
    script creates without a seed.
    """
    keras.utils.set_random_seed(SEED)
    default_rng = np.random.default_rng
    np.random.default_rng = lambda seed=None: default_rng(SEED if seed is None else seed)
    if "torch" in Path(script).read_text():
        with contextlib.suppress(ImportError):
            importlib.import_module("torch").manual_seed(SEED)


def numbers_of(logs):
    """Return the names and values of logs, in any shape that a `train_step` returns them."""
    paths = keras.tree.flatten_with_path(logs) if isinstance(logs, dict) else []
    return {
        "/".join(map(str, path)): keras.ops.convert_to_numpy(value).tolist()
        for path, value in paths
    }


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=0, help="samples of small_data.py; 0: none")
    parser.add_argument(
        "--perturb", action="store_true", help="change initial weights by one rounding unit"
    )
    parser.add_argument("--float64", action="store_true", help="compute in float64")
    parser.add_argument("logs", type=Path)
    parser.add_argument("script", nargs=argparse.REMAINDER)
    return parser.parse_args()


def main():
    options = parse()
    sys.argv = options.script
    if options.samples:
        # The folder of the recorder is the first of the path until the script's is.
        import small_data

        small_data.replace_downloads(sys.argv[0], options.samples)
    if options.perturb:
        perturb_weights()
    if options.float64:
        compute_in_float64()
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    outcome = {"logs": [], "paths": [], "warnings": [], "error": None}
    record_logs(outcome["logs"], outcome["paths"])
    record_warnings(outcome["warnings"])
    set_seed(sys.argv[0])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException as error:
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            outcome["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise
    finally:
        options.logs.write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
