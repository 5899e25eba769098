"""TensorFlow Serving's and Triton's own clients, from the environment that make has for them."""

import subprocess
from pathlib import Path

import pytest
from tests import parts

FOLDER = Path(__file__).parents[2] / ".venv-clients" / "bin"
PYTHON, TOOL = FOLDER / "python", FOLDER / "schemathesis"


@pytest.mark.slow
@parts.needs("the clients of TensorFlow Serving and Triton")
def test_they_work_unchanged(server):
    script = Path(__file__).with_name("official_clients.py")
    ports = [str(server.server.port), str(server.server.grpc_port)]
    done = subprocess.run([PYTHON, script, *ports], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "rest_snippets",
        "grpc_predict",
        "grpc_examples",
        "grpc_metadata_and_status",
        "grpc_errors",
        "triton",
    ]


@pytest.mark.slow
@parts.needs("Schemathesis")
def test_schemathesis_finds_nothing(server, tmp_path):
    checks = [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
    ]
    words = ["run", f"http://127.0.0.1:{server.server.port}/openapi.json", "--seed", "1"]
    words += ["--checks", ",".join(checks), "--max-examples", "50"]
    settings = {"capture_output": True, "text": True, "timeout": 600, "cwd": tmp_path}
    done = subprocess.run([TOOL, *words], **settings)
    assert done.returncode == 0, done.stdout + done.stderr
