"""Export a model, serve it and send images to it, like the serving example of Graphcore's CNNs.

python examples/cnns/send_request.py --config mnist --checkpoint runs/... --batch-size 8 \
    --num-threads 4

The flags of `convoy train`, or the run of --checkpoint, describe the model.
"""

import argparse
import subprocess
import sys
import tempfile

from convoy_command.cli import main as convoy

NAME = "model"


def read_flags() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1", help="address of the server")
    parser.add_argument("--port", type=int, default=8500, help="its gRPC port")
    parser.add_argument("--batch-size", type=int, default=1, help="images per request")
    parser.add_argument(
        "--model-batch-size", type=int, default=16, help="batch size of the exported model"
    )
    parser.add_argument("--num-threads", type=int, default=2, help="number of client processes")
    parser.add_argument("--num-images", type=int, default=1000, help="images per process")
    parser.add_argument(
        "--use-async", action="store_true", help="send requests without waiting for responses"
    )
    parser.add_argument("--verbose", action="store_true", help="print the latency of each request")
    parser.add_argument("--checkpoint", help="as for convoy export (default: random weights)")
    parser.add_argument("--real-images", metavar="DATASET", help="send test images of a dataset")
    parser.add_argument("--dataset-path", default=".", help="folder of the dataset")
    return parser.parse_known_args()


def main() -> int:
    flags, training = read_flags()
    with tempfile.TemporaryDirectory() as folder:
        export = ["export", "--export-dir", f"{folder}/{NAME}", *training]
        export += ["--batch-sizes", "1", str(flags.model_batch_size)]
        if flags.checkpoint:
            export += ["--checkpoint", flags.checkpoint]
        if status := convoy(export):
            return status
        serve = [sys.executable, "-m", "convoy", "serve", "--model", f"{NAME}={folder}/{NAME}"]
        serve += ["--host", flags.host, "--grpc-port", str(flags.port), "--port", "-1"]
        serve += ["--batch-timeout-micros", "500"]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        try:
            # The server prints a line when it is ready, and none if it could not start.
            if server.stdout is None or not server.stdout.readline():
                return 1
            return send(flags)
        finally:
            server.terminate()
            server.wait()


def send(flags: argparse.Namespace) -> int:
    request = ["request", "--model", NAME, "--host", flags.host, "--port", str(flags.port)]
    request += ["--batch-size", str(flags.batch_size), "--processes", str(flags.num_threads)]
    request += ["--num-images", str(flags.num_images)]
    request += ["--use-async"] * flags.use_async + ["--verbose"] * flags.verbose
    if flags.real_images:
        request += ["--dataset", flags.real_images, "--dataset-path", flags.dataset_path]
    return convoy(request)


if __name__ == "__main__":
    sys.exit(main())
