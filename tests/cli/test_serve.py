import json
import signal
import subprocess
import sys
import urllib.request

import convoy
import pytest
from convoy_command import cli
from tests.serving.models import half_plus

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "There is no model to serve."),
        (["--model", "half"], "--model half: pass NAME=FOLDER."),
        (["--model", "half=none"], "none is not a folder."),
        (["--model", "a=.", "--model", "a=."], "Two models are called a."),
        (["--model", "a=.", "--tls-key", "x"], "go together"),
        (["--model", "a=.", "--port", "-1", "--grpc-port", "-1"], "nothing to listen on"),
        (["--model", "a=.", "--max-request-bytes", "0"], "pass 1 or more"),
    ],
)
def test_a_server_that_cannot_start_says_so(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["serve", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_serves_until_it_is_told_to_stop(tmp_path):
    convoy.export(half_plus(2), tmp_path / "half", batch_sizes=[1])
    command = [sys.executable, "-m", "convoy", "serve", "--model", f"half={tmp_path / 'half'}"]
    command += ["--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[-1]
            grpc_address = process.stdout.readline().split()[-1]
            body = json.dumps({"instances": [1.0, 2.0]}).encode()
            with urllib.request.urlopen(f"{address}v1/models/half:predict", body) as response:
                assert json.loads(response.read()) == {"predictions": [2.5, 3.0]}
            words = ["--model", "half", "--port", grpc_address.split(":")[1], "--num-images", "20"]
            assert cli.main(["request", *words]) == 0
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
