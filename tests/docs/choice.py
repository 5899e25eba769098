"""Which commands of the pages are run where. `make test` runs all that are not listed here.

A command is named by its first words. A name that no page contains is an error.
"""

# What cannot be run by tests, and why.
NOT_RUN = {
    "make test": "these tests are a part of it",
    "make setup": "these tests run in what it sets up",
    "make bench-peers": "installs 5 GB of other frameworks, and takes 90 minutes",
    "make bench-zoo": "installs 5 GB of other frameworks, and takes hours",
    "pip install": "installs from elsewhere",
    "convoy compile": "needs compilers for TPUs and GPUs; `make test-targets` runs such commands",
    "convoy plan --target": "needs compilers for TPUs and GPUs; `make test-targets` runs one",
    "python3 train.py --config resnet50_16ipus_8k_bn_pipeline": "takes minutes for a weight update",
    ".venv/bin/python -m benchmarks.peers.environments": "installs 5 GB of other frameworks",
    ".venv/bin/python -m benchmarks.mnist": "runs TensorFlow beside us",
    ".venv/bin/python -m benchmarks.cifar10_ways": "needs CIFAR-10, for an hour",
    ".venv/bin/python -m benchmarks.cifar10 ": "runs PyTorch beside us",
    ".venv/bin/python -m benchmarks.serving": "runs PyTorch and ONNX Runtime beside us",
}

# What another test runs at a small size.
RUN_BY = {
    "python3 send_request.py": "tests/examples/test_cnns.py::"
    "test_test_images_are_sent_to_the_exported_model",
    "make train": "tests/examples/test_digits.py::test_trains_and_writes_its_run",
}

# What `make test-all` runs, and why not `make test`; the first that fits.
_PROCESSES = "starts processes; tests/launch has fast tests of such commands"
_EXAMPLE = "imports and compiles for half a minute; tests/examples has fast tests of the parts"
_BENCHMARK = "measures, which takes long at any size"
SLOW = {
    "convoy plan": "measures machine and network; tests/plan has fast tests of such commands",
    "convoy train --model resnet50": "ResNet-50 in two stages compiles for two minutes",
    "python3 -m examples_utils": "imports for seconds; tests/bench/test_command.py runs it, too",
    "docs/cluster.md: ": _PROCESSES,
    "docs/launch.md: ": _PROCESSES,
    "docs/own-images.md: ": "trains for a minute; tests/train/test_own_images.py has fast tests",
    "examples/cifar10/README.md: ": _EXAMPLE,
    "examples/cnns/README.md: ": _EXAMPLE,
    "examples/cosmoflow/README.md: ": _EXAMPLE,
    "examples/estimator_cnn/README.md: ": _EXAMPLE,
    "examples/mnist/README.md: ": _EXAMPLE,
    "benchmarks/README.md: ": _BENCHMARK,
}


def fitting(command, table):
    """Return the entry of a table that a command begins with, or nothing."""
    return next((key for key in table if begins(command, key)), None)


def begins(command, key):
    return (str(command) if ".md: " in key else command.line).startswith(key)
