"""Export a model, serve it and send images to it, like the serving example of Graphcore's CNNs.

python examples/cnns/send_request.py --config mnist --checkpoint runs/... --batch-size 8 \
    --num-threads 4

The flags of `convoy train`, or the run of --checkpoint, describe the model.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from convoy.cli.train import make_parser as make_training_parser
from convoy.cli.train import parse
from convoy.train.flags import Options
from convoy.train.run_folder import RUN, RunFolder
from convoy_command.cli import main as convoy
from convoy_command.parser import Parser

NAME = "model"
MODEL_BATCH_SIZE = 16


def read_flags() -> tuple[argparse.Namespace, list[str]]:
    """Return the flags of this program, and those of convoy train."""
    parser = Parser(
        prog="send_request.py",
        usage="%(prog)s [--flag value ...] [--flag of convoy train ...]",
        description="Export a model, serve it, and send images to it.",
        epilog="The other flags of convoy train describe the model too: --model, --dataset, "
        "--precision, --micro-batch-size, ... See convoy train --help.",
    )
    parser.add_argument("--config", metavar="NAME", help="recipe of convoy train for the model")
    parser.add_argument("--host", default="127.0.0.1", help="address of the server")
    parser.add_argument("--port", type=int, default=8500, help="its gRPC port (8500)")
    parser.add_argument("--batch-size", type=int, default=1, help="images per request (1)")
    parser.add_argument(
        "--model-batch-size",
        type=int,
        help="batch size of the exported model (default: --micro-batch-size of the flags or the "
        f"recipe, else {MODEL_BATCH_SIZE})",
    )
    parser.add_argument("--num-threads", type=int, default=2, help="number of client processes (2)")
    parser.add_argument("--num-images", type=int, default=1000, help="images per process (1000)")
    parser.add_argument(
        "--request-seconds", type=float, default=600.0, help="timeout of a request (600)"
    )
    parser.add_argument(
        "--use-async", action="store_true", help="send requests without waiting for responses"
    )
    parser.add_argument("--verbose", action="store_true", help="print the latency of each request")
    parser.add_argument("--checkpoint", help="as for convoy export (default: random weights)")
    parser.add_argument(
        "--dataset-path",
        metavar="DIR",
        help="folder of the model's dataset, whose test images are sent (default: random images)",
    )
    flags, others = parser.parse_known_args()
    parser.check_rest(others, make_training_parser())
    return flags, [*(("--config", flags.config) if flags.config else ()), *others]


def read_options(flags: argparse.Namespace, training: list[str]) -> Options:
    """Return the options of the model: those of the flags, or of the run of --checkpoint."""
    if flags.checkpoint and not flags.config:
        given = Path(flags.checkpoint)
        run = RunFolder(given if given.is_dir() else given.resolve().parent.parent)
        if run.recipe.is_file():
            training = ["--config-path", str(run.recipe), "--config", RUN, *training]
    return parse(training, "send_request.py")


def model_batch_size(flags: argparse.Namespace, training: list[str], options: Options) -> int:
    if flags.model_batch_size is not None:
        return flags.model_batch_size
    is_given = flags.config or any(word.startswith("--micro-batch-size") for word in training)
    return options.micro_batch_size if is_given else MODEL_BATCH_SIZE


def main() -> int:
    flags, training = read_flags()
    options = read_options(flags, training)
    size = model_batch_size(flags, training, options)
    with tempfile.TemporaryDirectory() as folder:
        export = ["export", "--export-dir", f"{folder}/{NAME}", *training]
        export += ["--batch-sizes", "1", str(size)]
        if flags.checkpoint:
            export += ["--checkpoint", flags.checkpoint]
        print(f"Exporting {options.model} with batch size {size} ...", flush=True)
        if status := convoy(export):
            return status
        serve = [sys.executable, "-m", "convoy", "serve", "--model", f"{NAME}={folder}/{NAME}"]
        serve += ["--host", flags.host, "--grpc-port", str(flags.port), "--port", "0"]
        serve += ["--batch-timeout-micros", "500"]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        try:
            # The server prints its addresses when it is ready, and nothing if it could not start.
            page = server.stdout.readline() if server.stdout else ""
            if not page:
                return 1
            return send(flags, options.dataset) or check_speed(page.split()[-1])
        finally:
            server.terminate()
            server.wait()


def send(flags: argparse.Namespace, dataset: str) -> int:
    request = ["request", "--model", NAME, "--host", flags.host, "--port", str(flags.port)]
    request += ["--batch-size", str(flags.batch_size), "--processes", str(flags.num_threads)]
    request += ["--num-images", str(flags.num_images)]
    request += ["--request-seconds", str(flags.request_seconds)]
    request += ["--use-async"] * flags.use_async + ["--verbose"] * flags.verbose
    if flags.dataset_path is not None:
        request += ["--dataset", dataset, "--dataset-path", flags.dataset_path]
    return convoy(request)


def check_speed(page: str) -> int:
    """Return 1 if the server did not run the model's fast programs: the figures are not theirs."""
    token = os.environ.get("CONVOY_SERVING_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(f"{page}status.json", headers=headers)) as r:
        (model,) = json.load(r)["models"]
    if model["fallback"]:
        print(
            f"send_request.py: error: slower programs were measured: {model['fallback']}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
