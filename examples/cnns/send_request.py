"""Export a model, serve it, and send images to it, as the serving example of Graphcore's CNNs does.

python examples/cnns/send_request.py --config mnist --checkpoint runs/... --batch-size 8 \
    --num-threads 4

The model is described by the flags of `convoy train`, or by the run that --checkpoint is of.
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
    parser.add_argument("--batch-size", type=int, default=1, help="images of one request")
    parser.add_argument("--model-batch-size", type=int, default=16, help="of the exported model")
    parser.add_argument("--num-threads", type=int, default=2, help="processes that send")
    parser.add_argument("--num-images", type=int, default=1000, help="of each process")
    parser.add_argument("--use-async", action="store_true", help="send on before an answer comes")
    parser.add_argument("--verbose", action="store_true", help="tell the latency of each request")
    parser.add_argument("--checkpoint", help="as for convoy export (default: random weights)")
    parser.add_argument("--real-images", metavar="DATASET", help="held-out images of a data set")
    parser.add_argument("--dataset-path", default=".", help="folder of that data set")
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
            # The line that says that it is ready; nothing if it could not start.
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
