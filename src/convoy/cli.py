"""The command line: one function a verb."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from collections.abc import Sequence
from importlib import metadata

from convoy.checkpoint import command as checkpoint


def doctor() -> int:
    """Say what is installed, which devices there are, and which kernels run."""
    import convoy
    import jax
    from convoy import compilation_cache, cpu

    rows = [("convoy", convoy.__version__), ("python", platform.python_version())]
    rows += [(name, metadata.version(name)) for name in ("keras", "jax", "jaxlib", "numpy")]
    found = jax.devices()
    rows += [
        ("devices", f"{len(found)} x {found[0].device_kind or found[0].platform}"),
        ("cpu kernels", str(cpu.status()).removeprefix("CPU kernels: ")),
        ("program cache", str(compilation_cache.active() or "off")),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        first, *more = value.splitlines() or [""]
        print(f"{name:<{width}}  {first}")
        for line in more:
            print(f"{'':<{width}}  {line}")
    return 0


def train(words: Sequence[str]) -> int:
    """Train and validate an image classifier, by flags or by a recipe."""
    from convoy.vision.application import main as train_main

    return train_main(words)


def data(words: Sequence[str]) -> int:
    """Look after data sets: `verify`, `build-imagenet` or `bench`, and flags."""
    from convoy.data import build_imagenet, verify
    from convoy.vision import data_bench

    actions = {
        "verify": verify.main,
        "build-imagenet": build_imagenet.main,
        "bench": data_bench.main,
    }
    if words and words[0] in actions:
        return actions[words[0]](words[1:])
    if list(words) in ([], ["--help"], ["-h"]):
        for name, action in actions.items():
            print(f"convoy data {name:<16} {(action.__doc__ or '').splitlines()[0]}")
        return 0 if words else 2
    print(f"convoy data: error: {words[0]!r} is not one of {', '.join(actions)}.", file=sys.stderr)
    return 2


def launch(words: Sequence[str]) -> int:
    """Run a script in several processes, on one host or many."""
    from convoy.launch.command import main as launch_main

    return launch_main(words)


def report(words: Sequence[str]) -> int:
    """Make a page of a recorded run, or of two beside each other."""
    from convoy.report.command import main as report_main

    return report_main(words)


def export(words: Sequence[str]) -> int:
    """Write a trained model as a version that can be served."""
    from convoy.vision.export_command import main as export_main

    return export_main(words)


def serve(words: Sequence[str]) -> int:
    """Serve exported models by TensorFlow Serving's APIs."""
    return _with_serving("convoy.serving.serve_command", words)


def request(words: Sequence[str]) -> int:
    """Send images to a server, and measure it."""
    return _with_serving("convoy.serving.request_command", words)


def bench(words: Sequence[str]) -> int:
    """Run the benchmarks of a spec, and compare them with an earlier run."""
    from convoy.bench.command import main as bench_main

    return bench_main(words)


def plan(words: Sequence[str]) -> int:
    """Say how to divide a model over devices: replicas, stages, micro-batches."""
    from convoy.plan.command import main as plan_main

    return plan_main(words)


def _with_serving(module: str, words: Sequence[str]) -> int:
    """Run a command that needs packages of the extra `serving`."""
    try:
        command = importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(
            f"convoy: error: {error.name} is not installed. Install the server with: "
            "pip install 'keras-convoy[serving]'",
            file=sys.stderr,
        )
        return 1
    return command.main(words)


VERBS = {"doctor": doctor}
# These read their flags themselves.
APPLICATIONS = {
    "train": train,
    "data": data,
    "launch": launch,
    "report": report,
    "export": export,
    "serve": serve,
    "request": request,
    "bench": bench,
    "plan": plan,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="convoy", description="Train and serve plain Keras models as compiled device programs."
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, function in (VERBS | APPLICATIONS).items():
        summary = (function.__doc__ or "").splitlines()[0]
        verbs.add_parser(name, help=summary, description=summary)
    checkpoint.add_parser(verbs)
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in APPLICATIONS:
        return APPLICATIONS[words[0]](words[1:])
    options = parser.parse_args(words)
    if options.version:
        print(f"convoy {metadata.version('keras-convoy')}")
        return 0
    if options.verb is None:
        parser.print_help()
        return 2
    if options.verb == "checkpoint":
        return checkpoint.run(options)
    return VERBS[options.verb]()


if __name__ == "__main__":
    sys.exit(main())
